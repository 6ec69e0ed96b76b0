"""Runs a request's choices on the engine."""
