"""Rounds activations to MXFP8 by the OCP rule.

in   x       [T, K]   K a multiple of 32
out  codes   [T, K] uint8      E4M3 bits, in the order of x
     scales  [T, K/32] uint8   E8M0
A group with a value that is not finite gets scale 255, which is NaN; the reference refuses it.

The network does not call this op: rms_norm_fed stores activations in the order in which matmuls on MXFP4 weights
multiply them. It is for callers whose matmul wants MXFP8 as OCP lays it out.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from firesteel.formats import group, mxfp8
from firesteel.kernels.op.device_code import DeviceCode
from firesteel.kernels.op.needs import triton_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.profile import QUANTISATION, OpProfile
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import exact
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def _bytes(x: Tensor) -> int:
    return x.nbytes + x.numel() + x.numel() // group.SIZE


@define_op(
    bytes=_bytes,
    tolerance=exact(why="a rounding of bits, in integers"),
    profile=OpProfile(
        QUANTISATION,
        # store_rows rounds activations for linear and moe_matmul.
        kernels={"quantize_mxfp8_kernel": "", "store_rows": ""},
    ),
)
def quantize_mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    return mxfp8.quantize(x)


def refuse_groups(x: Tensor) -> str | None:
    """Returns why rows cannot be cut into groups, or None."""
    if x.dtype not in FLOATS:
        return f"rounds bf16, fp16 and fp32, not {x.dtype}"
    return (
        None if x.shape[-1] % group.SIZE == 0 else f"wants rows of whole groups of {group.SIZE}, not {x.shape[-1]}"
    )


def _accepts(x: Tensor) -> str | None:
    return refuse_groups(x) or (None if x.stride(-1) == 1 else "wants rows whose values lie side by side")


def empty_mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Allocates the codes and scales of x [T, K]."""
    tokens, columns = x.shape
    codes = torch.empty(tokens, columns, dtype=torch.uint8, device=x.device)
    return codes, torch.empty(tokens, columns // group.SIZE, dtype=torch.uint8, device=x.device)


@quantize_mxfp8.implementation("triton", needs=triton_ready(), accepts=_accepts)
def triton_quantize_mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    from firesteel.kernels.triton.quantize_mxfp8 import launch

    codes, scales = empty_mxfp8(x)
    launch(x, codes, scales)
    return codes, scales


quantize_mxfp8.prefer("triton")


@quantize_mxfp8.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    from firesteel.kernels.triton import quantize_mxfp8 as device

    signature = {"x": "*bf16", "values": "*u8", "scales": "*u8", "num_tokens": "i32", "x_stride": "i32:16"}
    for columns in (2880, 4096):
        yield DeviceCode(
            variant=f"triton K={columns}",
            kernel=device.quantize_mxfp8_kernel,
            signature=signature,
            constants={"K": columns, "ROWS": device.ROWS, "COLUMNS": device.COLUMNS},
        )


@quantize_mxfp8.samples
def samples(device: torch.device) -> Iterator[Sample]:
    """Yields groups of very different magnitudes, down to subnormal scales, and one of zeros."""
    generator = torch.Generator(device).manual_seed(1)
    for tokens, columns in ((1, 2880), (3, 96), (65, 4096)):
        x = torch.randn(tokens, columns, device=device, generator=generator)
        powers = torch.randint(-120, 100, (tokens, columns // 32), device=device, generator=generator)
        x *= torch.exp2(powers.float()).repeat_interleave(32, dim=1)
        x[0, :32] = 0
        yield Sample(f"T={tokens} K={columns}", (x.bfloat16(),))


@quantize_mxfp8.workloads
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    hidden = shapes.spec.hidden_size
    yield WorkloadPart("", 0.0, 4 * m * hidden, lambda: (shapes.normal(m, hidden),))
