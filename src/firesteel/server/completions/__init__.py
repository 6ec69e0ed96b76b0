"""The completions endpoint."""
