"""Rounding and matrix products that give the same results on a GPU and in Triton's interpreter.

On a GPU both are the plain instructions. The interpreter (3.6 to 3.9) truncates fp32 to bf16 and multiplies the raw
bits of bf16 operands in `tl.dot`, so there the rounding is done on the bits and the operands are widened first.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def round_to(x, dtype: tl.constexpr):
    """Rounds fp32 `x` to `dtype` (bf16, fp16 or fp32), to nearest, ties to even. NaN stays NaN."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        return (tl.where(x == x, rounded, 0x7FC00000) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:  # noqa: RET505  (Triton compiles one of the two: both must end the function)
        return x.to(dtype)


@triton.jit
def widen(x):
    """Converts `x` to fp32, exactly. The interpreter's own cast from bf16 is ten times slower."""
    if INTERPRETED and x.dtype == tl.bfloat16:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:  # noqa: RET505
        return x.to(tl.float32)


@triton.jit
def dot(a, b, accumulator):
    """Returns accumulator + a @ b in fp32; a and b share a type: bf16, fp16 or fp32 (not rounded to tf32)."""
    if INTERPRETED:
        return tl.dot(widen(a), widen(b), accumulator, input_precision="ieee")
    else:  # noqa: RET505
        return tl.dot(a, b, accumulator, input_precision="ieee")
