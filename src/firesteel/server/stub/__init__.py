"""An engine and a server that cost nothing, and clients, to measure the HTTP server itself."""
