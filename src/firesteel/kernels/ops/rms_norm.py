"""Adds the last layer's update to the residual stream and normalises the sum.

in   RmsNormOperands
out  y    [T, H]  sum / rms(sum) * weight
     sum  [T, H]  residual + update; may be the residual itself if there is no update
Computed in fp32, each result rounded once on store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from firesteel.kernels.op.device_code import DeviceCode
from firesteel.kernels.op.needs import triton_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.operands import Operands
from firesteel.kernels.op.profile import NORM, OpProfile
from firesteel.kernels.op.rows import rows_of
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart
from firesteel.kernels.ops.fixed_rows import on_cpu, pad_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNormOperands(Operands):
    residual: Tensor  # [T, H]
    update: Tensor | None = None  # [T, H]; the first norm of the model has none
    weight: Tensor  # [H] bf16
    eps: float


def _bytes(operands: RmsNormOperands) -> int:
    return operands.residual.nbytes * (2 if operands.update is None else 4) + operands.weight.nbytes


@define_op(
    bytes=_bytes,
    tolerance=bf16(ulps=1, why="one rounding; the order of the sum of squares is free"),
    keeps_choice=True,
    profile=OpProfile(NORM, kernels={"rms_norm_kernel": ""}),
    rows=rows_of("residual", "update"),
)
def rms_norm(operands: RmsNormOperands) -> tuple[Tensor, Tensor]:
    residual, update = operands.residual, operands.update
    total = residual.float() if update is None else residual.float() + update.float()
    y = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + operands.eps) * operands.weight.float()
    return y.to(residual.dtype), total.to(residual.dtype)


def refuse_rows(operands: RmsNormOperands) -> str | None:
    """Returns why the kernel cannot read these rows, or None."""
    rows = (operands.residual, operands.update, operands.weight)
    is_dense = all(tensor.stride(-1) == 1 for tensor in rows if tensor is not None)
    return None if is_dense else "wants rows whose values lie side by side"


@rms_norm.implementation("triton", needs=triton_ready(), accepts=refuse_rows, is_row_invariant=True)
def triton_rms_norm(operands: RmsNormOperands) -> tuple[Tensor, Tensor]:
    from firesteel.kernels.triton.rms_norm import launch

    y, total = make_results(operands)
    launch(operands.residual, operands.update, operands.weight, operands.eps, y, total)
    return y, total


@rms_norm.implementation("torch:invariant", needs=on_cpu, is_row_invariant=True)
def torch_rms_norm(operands: RmsNormOperands) -> tuple[Tensor, Tensor]:
    """Sums the squares of as many rows at a time as every other call."""
    residual, update = operands.residual, operands.update
    total = residual.float() if update is None else residual.float() + update.float()
    squares = pad_rows(total).square().mean(-1).flatten()[: total.shape[0], None]
    y = total * torch.rsqrt(squares + operands.eps) * operands.weight.float()
    return y.to(residual.dtype), total.to(residual.dtype)


def make_results(operands: RmsNormOperands) -> tuple[Tensor, Tensor]:
    """Returns y and the sum, not yet written; without an update the sum is the residual itself."""
    residual = operands.residual
    y = torch.empty(residual.shape, dtype=residual.dtype, device=residual.device)
    return y, residual if operands.update is None else torch.empty_like(y)


rms_norm.prefer("triton")


@rms_norm.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    plain = {"values": None, "scales": None, "FORMAT": "", "NATIVE": False}
    yield kernel_code("triton", {}, plain)
    yield kernel_code("triton first", {}, {"update": None, **plain})


def kernel_code(variant: str, signature: dict[str, str], constants: dict[str, Any]) -> DeviceCode:
    """Returns the kernel at gpt-oss's width; `signature` and `constants` are of results beside y and the sum."""
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
        operands = RmsNormOperands(residual=x, update=update, weight=weight, eps=1e-5)
        yield Sample(f"T={tokens} H={hidden}", (operands,))
        yield Sample(f"T={tokens} H={hidden} first", (replace(operands, update=None),))


@rms_norm.workloads
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    hidden = shapes.spec.hidden_size

    def draw() -> tuple[RmsNormOperands]:
        return (RmsNormOperands(**draw_norm(shapes, m)),)

    yield WorkloadPart("", 0.0, 8 * m * hidden, draw)


def draw_norm(shapes: ModelShapes, m: int) -> dict[str, Any]:
    """Draws the fields of RmsNormOperands for M tokens."""
    hidden = shapes.spec.hidden_size
    rows = {"residual": shapes.normal(m, hidden), "update": shapes.normal(m, hidden)}
    return {**rows, "weight": shapes.bias(hidden), "eps": shapes.spec.rms_eps}
