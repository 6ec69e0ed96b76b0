"""Experts multiplied by wgmma, the matrix instruction of Hopper, in FP8."""
