"""Servers under test: commands, supervision, diagnosis and shutdown."""
