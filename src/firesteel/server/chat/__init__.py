"""The chat completions endpoint."""
