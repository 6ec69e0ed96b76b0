"""The responses endpoint and its store."""
