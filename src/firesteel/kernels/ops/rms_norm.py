"""Adds the last layer's update to the residual stream and normalises the sum.

in   residual  [T, H]
     update    [T, H] or None (first norm of the model)
     weight    [H] bf16
out  y         [T, H]   sum / rms(sum) * weight
     sum       [T, H]   residual + update; may be residual itself where update is None
Computed in fp32, each result rounded once on store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from firesteel.kernels.op.needs import triton_ready
from firesteel.kernels.op.op import DeviceCode, Sample, define_op
from firesteel.kernels.op.profile import NORM, OpProfile
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart


def _bytes(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> int:
    return residual.nbytes * (2 if update is None else 4) + weight.nbytes


@define_op(
    bytes=_bytes,
    tolerance=bf16(ulps=1, why="one rounding; the order of the sum of squares is free"),
    keeps_choice=True,
    profile=OpProfile(NORM, kernels={"rms_norm_kernel": ""}),
)
def rms_norm(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = residual.float() if update is None else residual.float() + update.float()
    y = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * weight.float()
    return y.to(residual.dtype), total.to(residual.dtype)


def refuse_rows(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> str | None:
    """Why the kernel cannot read these rows, or None."""
    rows = (residual, weight) if update is None else (residual, update, weight)
    return None if all(one.stride(-1) == 1 for one in rows) else "wants rows whose values lie side by side"


@rms_norm.implementation("triton", needs=triton_ready(), accepts=refuse_rows)
def triton_rms_norm(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    from firesteel.kernels.triton.rms_norm import launch

    y = torch.empty(residual.shape, dtype=residual.dtype, device=residual.device)
    total = residual if update is None else torch.empty_like(y)
    launch(residual, update, weight, eps, y, total)
    return y, total


rms_norm.prefer("triton")


@rms_norm.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    plain = {"values": None, "scales": None, "FORMAT": "", "NATIVE": False}
    yield kernel_code("triton", {}, plain)
    yield kernel_code("triton first", {}, {"update": None, **plain})


def kernel_code(variant: str, signature: dict[str, str], constants: dict[str, Any]) -> DeviceCode:
    """At gpt-oss's width; signature and constants are of what is stored beside y and the sum, or is absent."""
    from firesteel.kernels.triton.rms_norm import NUM_WARPS, rms_norm_kernel

    tensors = dict.fromkeys(("residual", "update", "weight", "y", "total"), "*bf16")
    numbers = {"residual_stride": "i32:16", "update_stride": "i32:16", "eps": "fp32"}
    return DeviceCode(
        variant=variant,
        kernel=rms_norm_kernel,
        signature={**tensors, **numbers, **signature},
        constants={**constants, "HIDDEN": 2880, "TILE": 4096},
        num_warps=NUM_WARPS,
    )


@rms_norm.samples
def samples(device: torch.device) -> Iterator[Sample]:
    generator = torch.Generator(device).manual_seed(1)
    for tokens, hidden in ((1, 2880), (3, 96), (65, 2880)):
        x, update = torch.randn(2, tokens, hidden, device=device, generator=generator, dtype=torch.bfloat16)
        weight = torch.rand(hidden, device=device, generator=generator).bfloat16()
        yield Sample(f"T={tokens} H={hidden}", (x, update, weight, 1e-5))
        yield Sample(f"T={tokens} H={hidden} first", (x, None, weight, 1e-5))


@rms_norm.workloads
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    hidden = shapes.spec.hidden_size

    def draw() -> tuple[Any, ...]:
        return shapes.normal(m, hidden), shapes.normal(m, hidden), shapes.bias(hidden), shapes.spec.rms_eps

    yield WorkloadPart("", 0.0, 8 * m * hidden, draw)
