"""Experts multiplied by wgmma, the matrix instruction of Hopper, in bf16 and FP8."""
