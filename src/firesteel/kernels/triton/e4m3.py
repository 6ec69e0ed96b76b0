"""Converts fp32 to E4M3 with integer operations: the same bits on every GPU and in the interpreter."""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

from firesteel.kernels.triton.mxfp import encode, nearest


@triton.jit
def to_e4m3(x):
    """Returns codes as uint8: to nearest, ties to even, saturating at 448; NaN is 0x7F. Same as formats.e4m3."""
    codes = encode(x, nearest(x, 3, 7, 448.0), 3, 7, 7)
    return tl.where(x == x, codes, 0x7F).to(tl.uint8)
