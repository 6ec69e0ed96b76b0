"""Comparison of a result with a baseline."""
