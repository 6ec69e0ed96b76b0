"""Measurements of decoding steps."""
