"""Handling of untrusted input: damaged or hostile files, control characters, panics and deep recursion."""
