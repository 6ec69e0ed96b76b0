"""A stub engine, a server in front of it and clients, to measure the HTTP front end alone."""
