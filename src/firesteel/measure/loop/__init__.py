"""Measurements of the whole engine."""
