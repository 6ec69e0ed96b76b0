"""Checks of ops: machine code compiled for any GPU, and results against the reference."""
