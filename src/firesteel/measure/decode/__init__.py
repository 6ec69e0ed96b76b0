"""Measurements of bare decoding steps."""
