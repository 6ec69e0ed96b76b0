"""Measurements of kernels, decoding steps and engines, with rooflines, ceilings and records."""
