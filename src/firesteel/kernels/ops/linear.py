"""Matrix product with a dense weight: qkv, o and lm_head.

in   LinearOperands
out  y  [T, M]  x @ weight.T + bias, in x's type
Accumulated in fp32, rounded once on store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from firesteel.device import find_capability
from firesteel.formats import mxfp4
from firesteel.kernels.fixed_rows import multiply, on_cpu
from firesteel.kernels.invariant_tiles import dense_tile, multiply_dense, multiply_packed
from firesteel.kernels.libraries import linear_library
from firesteel.kernels.libraries.flashinfer_linear import FlashinferWeight, linear_ready
from firesteel.kernels.op.needs import triton_ready
from firesteel.kernels.op.op import capability, define_op
from firesteel.kernels.op.profile import DENSE, OpProfile
from firesteel.kernels.op.rows import rows_of
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.activation import is_native, lacks_native, round_activation
from firesteel.kernels.operands.fed import refuse_activation, refuse_fed
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.ops.linear_code import VECTOR_TOKENS, list_code
from firesteel.kernels.ops.linear_operands import LinearOperands, list_samples, list_workloads
from firesteel.kernels.tiles.tile_pin import AUTO, refuse_tile

ROWS_AT_ONCE = 16384  # bounds the fp32 copy of lm_head's 201088 rows
CUBLAS_TOKENS = 128  # from this many on, cublas is faster on an H200
OTHER_ORDER = "reads the weight in the checkpoint's order, not in that of a library"


def _bytes(operands: LinearOperands) -> int:
    x, weight, bias = operands.x, operands.weight, operands.bias
    read, bias_bytes = x if operands.fed is None else operands.fed, 0 if bias is None else bias.nbytes
    return read.nbytes + weight.nbytes + bias_bytes + x.shape[0] * weight.shape[0] * x.element_size()


def _reference_accepts(operands: LinearOperands) -> str | None:
    if operands.tile != AUTO:
        return f"has no tiles, and {operands.tile} is pinned"
    return _needs_mxfp4(operands) if isinstance(operands.weight, Tensor) else None


def _needs_mxfp4(operands: LinearOperands) -> str | None:
    """Returns why bf16 weights are refused, or None."""
    if operands.activation != "bf16":
        return f"rounds activations to {operands.activation} only before MXFP4 weights, these are bf16"
    is_stored = operands.fed is not None
    return "reads stored activations only before MXFP4 weights, these are bf16" if is_stored else None


@define_op(
    bytes=_bytes,
    tolerance=bf16(ulps=1, why="one rounding; fp32 sums in free order"),
    accepts=_reference_accepts,
    keeps_choice=True,
    profile=OpProfile(
        DENSE,
        reads="linear",
        kernels={
            "mxfp4_linear_kernel": "linear.mxfp4",
            # These also multiply the router's matrix, before choose_kernel.
            "vector_kernel": "linear.plain route",
            "tile_kernel": "linear.plain route",
        },
    ),
    rows=rows_of("x", "fed"),
)
def linear(operands: LinearOperands) -> Tensor:
    x, bias = operands.x, operands.bias
    wide = round_activation(x.float(), operands.activation)
    parts = [functional.linear(wide, rows) for rows in _wide_rows(operands.weight)]
    y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
    return (y if bias is None else y + bias.float()).to(x.dtype)


def _wide_rows(weight: Tensor | Mxfp4Weight | FlashinferWeight) -> Iterator[Tensor]:
    """Yields the weight in fp32, ROWS_AT_ONCE rows at a time."""
    if isinstance(weight, FlashinferWeight):
        weight = weight.unpack()
    if isinstance(weight, Mxfp4Weight):
        pairs = zip(weight.codes.split(ROWS_AT_ONCE), weight.scales.split(ROWS_AT_ONCE), strict=True)
        yield from (mxfp4.dequantize(codes, scales) for codes, scales in pairs)
    else:
        yield from (rows.float() for rows in weight.split(ROWS_AT_ONCE))


def _accepts(operands: LinearOperands) -> str | None:
    x, weight = operands.x, operands.weight
    if isinstance(weight, FlashinferWeight):
        return OTHER_ORDER
    if isinstance(weight, Mxfp4Weight):
        return _refuse_mxfp4(operands, weight)
    if why := _needs_mxfp4(operands):
        return why
    if operands.tile != AUTO:
        return f"pins tiles of MXFP4 weights only, these are bf16 and {operands.tile} is pinned"
    if x.dtype != weight.dtype or x.dtype not in (torch.bfloat16, torch.float16):
        return f"multiplies bf16 by bf16 or fp16 by fp16, not {x.dtype} by {weight.dtype}"
    return None if x.stride(-1) == 1 and weight.stride(-1) == 1 else "wants rows whose values lie side by side"


def _refuse_mxfp4(operands: LinearOperands, weight: Mxfp4Weight) -> str | None:
    x, activation = operands.x, operands.activation
    if why := refuse_activation(activation):
        return why
    if x.dtype != torch.bfloat16:
        return f"multiplies bf16 tokens by MXFP4 weights, not {x.dtype}"
    tensors = (x, weight.codes, weight.scales, operands.bias)
    if not all(tensor.is_contiguous() for tensor in tensors if tensor is not None):
        return "wants contiguous tokens, weights and biases where weights are MXFP4"
    if x.numel() >= 2**31:
        return f"counts the values of x in 32 bits: {x.shape[0]} tokens are too many"
    if weight.scales.numel() % 4:
        return f"reads scales by words of four: {weight.shape[0]} rows of {weight.shape[1]} leave a part of one"
    capability = find_capability(x.device)
    return (
        refuse_tile(operands.tile)
        or lacks_native(capability, activation)
        or refuse_fed(operands.fed, x, activation, is_native(capability, activation))
    )


def _accepts_few(operands: LinearOperands) -> str | None:
    if isinstance(operands.weight, Mxfp4Weight):
        return "is for bf16 weights: on MXFP4 ones gemm is faster from the first token on"
    if operands.x.shape[0] > VECTOR_TOKENS:
        return f"is for {VECTOR_TOKENS} tokens at most, not {operands.x.shape[0]}"
    return _accepts(operands)


@linear.implementation("triton:gemv", needs=triton_ready(), accepts=_accepts_few)
def triton_gemv(operands: LinearOperands) -> Tensor:
    """Multiplies few tokens, bound by the bytes of the weights; a single token without matrix instructions."""
    from firesteel.kernels.triton.linear import launch_tiles, launch_vector

    x, weight = operands.x, operands.weight
    assert isinstance(weight, Tensor)
    y = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    launch = launch_vector if x.shape[0] == 1 else launch_tiles
    launch(x, weight, operands.bias, y)
    return y


@linear.implementation("triton:gemm", needs=triton_ready(), accepts=_accepts, reads_fed=True)
def triton_gemm(operands: LinearOperands) -> Tensor:
    """Multiplies by MXFP4 weights, and by bf16 ones for numbers of tokens between those of gemv and cublas."""
    x, weight = operands.x, operands.weight
    if isinstance(weight, Mxfp4Weight):
        return _run_mxfp4(operands, weight)
    assert isinstance(weight, Tensor)
    from firesteel.kernels.triton.linear import launch_tiles

    y = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    launch_tiles(x, weight, operands.bias, y)
    return y


def _accepts_many(operands: LinearOperands) -> str | None:
    x = operands.x
    if not isinstance(operands.weight, Tensor):
        return "is for bf16 weights, these are MXFP4"
    if x.dtype != torch.bfloat16:
        return f"multiplies bf16 by bf16, not {x.dtype}"
    if x.shape[0] < CUBLAS_TOKENS:
        return f"is for {CUBLAS_TOKENS} tokens or more, not {x.shape[0]}"
    return _accepts(operands)


@linear.implementation("cublas", needs=capability(8, 0), accepts=_accepts_many)
def cublas(operands: LinearOperands) -> Tensor:
    """Multiplies many tokens with cuBLAS through torch, and forbids it to round partial sums to bf16."""
    assert isinstance(operands.weight, Tensor)
    settings: Any = torch.backends.cuda.matmul
    before = settings.allow_bf16_reduced_precision_reduction
    splits = getattr(settings, "allow_bf16_reduced_precision_reduction_split_k", None)  # newer versions of torch
    settings.allow_bf16_reduced_precision_reduction = False
    try:
        return functional.linear(operands.x, operands.weight, operands.bias)
    finally:
        settings.allow_bf16_reduced_precision_reduction = before if splits is None else (before, splits)


def _accepts_invariant(operands: LinearOperands) -> str | None:
    if operands.tile != AUTO:
        return f"has one tile, and {operands.tile} is pinned"
    return _accepts(operands)


@linear.implementation(
    "triton:invariant", needs=triton_ready(), accepts=_accepts_invariant, reads_fed=True, is_row_invariant=True
)
def triton_invariant(operands: LinearOperands) -> Tensor:
    """Multiplies any number of tokens with the one tile of the weight."""
    x, weight, bias = operands.x, operands.weight, operands.bias
    assert not isinstance(weight, FlashinferWeight)
    if isinstance(weight, Mxfp4Weight):
        return multiply_packed(x, operands.fed, weight, bias, operands.activation)
    y = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    return multiply_dense(x, weight, bias, y, dense_tile(weight.shape[0]))


@linear.implementation("torch:invariant", needs=on_cpu, accepts=_reference_accepts, is_row_invariant=True)
def torch_invariant(operands: LinearOperands) -> Tensor:
    """Multiplies as many tokens at a time as every other call."""
    x, bias = operands.x, operands.bias
    wide = round_activation(x.float(), operands.activation)
    y = torch.cat([multiply(wide, rows) for rows in _wide_rows(operands.weight)], dim=-1)
    return (y if bias is None else y + bias.float()).to(x.dtype)


linear.implementation(
    "flashinfer",
    needs=linear_ready,
    accepts=linear_library.refuse,
    pack=linear_library.reorder,
    tolerance=linear_library.TOLERANCE,
)(linear_library.run)


def _run_mxfp4(operands: LinearOperands, weight: Mxfp4Weight) -> Tensor:
    from firesteel.kernels.triton import mxfp4_linear as device
    from firesteel.kernels.triton.mxfp4_product import store

    x, activation = operands.x, operands.activation
    capability = find_capability(x.device)
    native = is_native(capability, activation)
    tile = device.pin_tile(operands.tile, capability)
    tile = tile or device.pick_tile(x.shape[0], weight.shape[0], capability, native)
    fed = operands.fed or store(x, activation, native)
    return device.run(fed, weight.codes, weight.scales, operands.bias, tile)


linear.prefer("triton:gemv", "cublas", "triton:gemm")
linear.device_code(list_code)
linear.samples(list_samples)
linear.workloads(list_workloads)
