"""rms_norm that also stores its result as a matmul on MXFP4 weights reads it, in one pass over the row.

in   RmsNormFedOperands
out  y, sum  of rms_norm
     fed     y as it was stored, rounded and put in the order of the product (Fed); codes on SM12x, else bf16

The first matmul of the experts gathers its tokens' rows from `fed` as it loads them: neither the quantiser nor the
gather takes a pass of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from firesteel.device import find_capability
from firesteel.kernels.op.device_code import DeviceCode
from firesteel.kernels.op.needs import triton_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.profile import NORM, OpProfile
from firesteel.kernels.op.rows import rows_of
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import Tolerance, bf16
from firesteel.kernels.operands.activation import ACTIVATIONS, is_native, lacks_native
from firesteel.kernels.operands.fed import Fed, refuse_activation, store
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart
from firesteel.kernels.ops.fixed_rows import on_cpu
from firesteel.kernels.ops.quantize_mxfp8 import refuse_groups
from firesteel.kernels.ops.rms_norm import (
    RmsNormOperands,
    draw_norm,
    kernel_code,
    make_results,
    refuse_rows,
    rms_norm,
    torch_rms_norm,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNormFedOperands(RmsNormOperands):
    """Operands of rms_norm whose H is a multiple of 32."""

    activation: str = "bf16"  # or mxfp8, mxfp4: what the matmul's activations are rounded to, by the OCP rule

    def make_fed(self, device: torch.device) -> Fed:
        """Allocates `fed`."""
        native = is_native(find_capability(self.residual.device), self.activation)
        return Fed.empty(self.residual.shape, self.activation, native, device)


def _bytes(operands: RmsNormFedOperands) -> int:
    return rms_norm.bytes(operands) + operands.make_fed(torch.device("meta")).nbytes


ROUNDED = Tolerance(
    worst=1 / 3,
    rms=2.0**-6,
    why="where y is a unit in the last place apart, which is rare, its code may be the next: 6 instead of 4",
)


def _tolerance_of(result: object) -> Tolerance | None:
    return ROUNDED if isinstance(result, Fed) and result.activation != "bf16" else None


@define_op(
    bytes=_bytes,
    tolerance=bf16(ulps=1, why=rms_norm.tolerance.why, own=_tolerance_of),
    keeps_choice=True,
    profile=OpProfile(NORM),
    rows=rows_of("residual", "update"),
)
def rms_norm_fed(operands: RmsNormFedOperands) -> tuple[Tensor, Tensor, Fed]:
    activation = operands.activation
    y, total = rms_norm.reference(operands)
    return y, total, store(y, activation, is_native(find_capability(y.device), activation))


def _accepts(operands: RmsNormFedOperands) -> str | None:
    residual, activation = operands.residual, operands.activation
    if residual.dtype != torch.bfloat16:
        return f"stores bf16 rows, not {residual.dtype}"
    return (
        refuse_activation(activation)
        or refuse_groups(residual)
        or refuse_rows(operands)
        or lacks_native(find_capability(residual.device), activation)
    )


@rms_norm_fed.implementation("triton", needs=triton_ready(), accepts=_accepts, is_row_invariant=True)
def triton_rms_norm_fed(operands: RmsNormFedOperands) -> tuple[Tensor, Tensor, Fed]:
    from firesteel.kernels.triton.rms_norm import launch

    y, total = make_results(operands)
    fed = operands.make_fed(operands.residual.device)
    launch(operands.residual, operands.update, operands.weight, operands.eps, y, total, fed)
    return y, total, fed


@rms_norm_fed.implementation("torch:invariant", needs=on_cpu, is_row_invariant=True)
def torch_rms_norm_fed(operands: RmsNormFedOperands) -> tuple[Tensor, Tensor, Fed]:
    activation = operands.activation
    y, total = torch_rms_norm(operands)
    return y, total, store(y, activation, is_native(find_capability(y.device), activation))


rms_norm_fed.prefer("triton")


@rms_norm_fed.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    for activation in ACTIVATIONS:
        native = is_native(capability, activation)
        stored = {"values": "*u8", "scales": "*u8"} if native else {"values": "*bf16"}
        form = {"FORMAT": activation, "NATIVE": native}
        yield kernel_code(f"triton {activation}", stored, form if native else {"scales": None, **form})


@rms_norm_fed.samples
def samples(device: torch.device) -> Iterator[Sample]:
    """Yields the samples of rms_norm, each with every activation."""
    assert rms_norm.make_samples is not None
    for sample in rms_norm.make_samples(device):
        (plain,) = sample.args
        shared = {part.name: getattr(plain, part.name) for part in fields(plain)}
        for activation in ACTIVATIONS:
            yield Sample(f"{sample.label} {activation}", (RmsNormFedOperands(**shared, activation=activation),))


@rms_norm_fed.workloads
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    assert rms_norm.make_workloads is not None
    (plain,) = rms_norm.make_workloads(shapes, m, activation)
    yield plain._replace(draw=lambda: (RmsNormFedOperands(**draw_norm(shapes, m), activation=activation),))
