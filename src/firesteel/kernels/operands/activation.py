"""Formats that activations are rounded to before MXFP4 weights, and the GPUs that multiply them natively."""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import importlib.util

from torch import Tensor

from firesteel.formats import fp8, mxfp4, mxfp6, mxfp8

ACTIVATIONS = ("bf16", "mxfp8", "mxfp4")
EMULATED = {
    f"mxfp6_{element}": element for element in mxfp6.ELEMENTS
}  # for experiments; only references round to them
FP8 = "fp8"  # E4M3 with one scale per token: of the experts on Hopper, and of references
BLOCK_SCALED_TRITON = (3, 8)  # older versions silently lower dot_scaled for SM12x to bf16 instructions


def round_activation(x: Tensor, activation: str) -> Tensor:
    """Returns fp32 x [.., K] as the matmul sees it."""
    if activation == "bf16":
        return x
    if activation == "mxfp8":
        return mxfp8.dequantize(*mxfp8.quantize(x))
    if activation == "mxfp4":
        return mxfp4.dequantize(*mxfp4.quantize(x))
    if activation == FP8:
        return fp8.dequantize(*fp8.quantize(x))
    if element := EMULATED.get(activation):
        return mxfp6.dequantize(*mxfp6.quantize(x, element), element)
    known = ", ".join((*ACTIVATIONS, FP8, *EMULATED))
    raise ValueError(f"unknown activation {activation!r}; the activations are {known}")


def is_native(capability: tuple[int, int] | None, activation: str) -> bool:
    """Returns whether the GPU multiplies such activations directly (block-scaled MMA), not as bf16."""
    return activation in ("mxfp8", "mxfp4") and capability is not None and capability[0] == 12


def lacks_native(capability: tuple[int, int] | None, activation: str) -> str | None:
    """Returns why a GPU that could multiply such activations natively will not, or None."""
    if not is_native(capability, activation):
        return None
    if importlib.util.find_spec("triton") is None:
        return (
            f"needs Triton >= 3.8 for {activation} activations on SM12x, and Triton is not installed: "
            "install firesteel[spark] (torch >= 2.14) or use --activation bf16"
        )
    import triton

    if tuple(int(part) for part in triton.__version__.split(".")[:2]) >= BLOCK_SCALED_TRITON:
        return None
    return (
        f"needs Triton >= 3.8 for {activation} activations on SM12x, this is {triton.__version__}: "
        "install firesteel[spark] (torch >= 2.14) or use --activation bf16"
    )
