"""Defines an op in one file: contract, reference, two implementations, samples, workloads, and a check.

clamped_swiglu
in   x      [T, 2I] bf16   columns alternate gate, up
     limit  float
out  y      [T, I]  bf16   g * sigmoid(1.702 g) * (u + 1)    g = min(gate, limit)    u = clip(up, -limit, limit)
Computed in fp32, rounded once on store. A call moves 6 T I bytes: it is bound by memory bandwidth.

In the package the op would be `kernels/ops/clamped_swiglu.py`, with one line in the registry; the tests,
`firesteel verify`, `firesteel bench ops` and profiles would then find it.
"""

import argparse
from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from firesteel.device import find_device
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.needs import triton_ready
from firesteel.kernels.op.op import anywhere, define_op
from firesteel.kernels.op.profile import NORM, OpProfile
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart
from firesteel.kernels.proof.verify import Status, list_unusable, verify

ALPHA = 1.702


def count_bytes(x: Tensor, limit: float) -> int:
    """Returns the fewest bytes that a call must move; benchmarks divide by them."""
    return x.nbytes + x.nbytes // 2


# The reference is the definition: plain torch, fp32 inside, easy to compare with the published model.
# `profile` says where profiles list the op and its kernels.
@define_op(
    bytes=count_bytes,
    tolerance=bf16(ulps=1, why="one rounding; exp differs in its last bit"),
    profile=OpProfile(NORM, kernels={"swiglu_kernel": ""}),
)
def clamped_swiglu(x: Tensor, limit: float) -> Tensor:
    gate, up = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (gate * torch.sigmoid(ALPHA * gate) * (up + 1)).to(x.dtype)


# An implementation says what it needs of the device (`needs`) and which arguments it refuses (`accepts`).
@clamped_swiglu.implementation("strided", needs=anywhere)
def strided_swiglu(x: Tensor, limit: float) -> Tensor:
    gate, up = x[:, 0::2].float().clamp_(max=limit), x[:, 1::2].float().clamp_(-limit, limit)
    return torch.nn.functional.silu(gate * ALPHA).div_(ALPHA).mul_(up.add_(1)).to(x.dtype)


@triton.jit
def swiglu_kernel(x, y, size, limit, ALPHA: tl.constexpr, TILE: tl.constexpr) -> None:  # noqa: ANN001
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    gate = tl.minimum(tl.load(x + 2 * at, mask=at < size).to(tl.float32), limit)
    up = tl.load(x + 2 * at + 1, mask=at < size).to(tl.float32)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    tl.store(y + at, (gate * tl.sigmoid(ALPHA * gate) * (up + 1)).to(tl.bfloat16), mask=at < size)


def refuse_strides(x: Tensor, limit: float) -> str | None:
    return None if x.is_contiguous() else "needs contiguous rows: call contiguous() first"


@clamped_swiglu.implementation("triton", needs=triton_ready(), accepts=refuse_strides)
def triton_swiglu(x: Tensor, limit: float) -> Tensor:
    y = torch.empty(x.shape[0], x.shape[1] // 2, dtype=x.dtype, device=x.device)
    swiglu_kernel[(triton.cdiv(y.numel(), 1024),)](x, y, y.numel(), limit, ALPHA=ALPHA, TILE=1024)
    return y


# The measured order, best first. The first one that can run here is used, unless the user pins another.
clamped_swiglu.prefer("triton", "strided")


# Samples serve tests. 2880 is not a multiple of 1024: tails are the normal case.
@clamped_swiglu.samples
def make_samples(device: torch.device) -> Iterator[Sample]:
    generator = torch.Generator(device).manual_seed(1)
    for tokens, width in ((1, 2880), (3, 96), (65, 2880)):
        x = 4 * torch.randn(tokens, 2 * width, device=device, generator=generator)
        yield Sample(f"T={tokens} I={width}", (x.bfloat16(), 7.0))
    yield Sample("at the limit", (torch.full((2, 8), 7.0, device=device, dtype=torch.bfloat16), 7.0))


# Workloads serve benchmarks: how a model uses the op in a step of M tokens.
@clamped_swiglu.workloads
def make_workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec
    rows, width = m * spec.num_active, spec.intermediate_size
    yield WorkloadPart("", 0.0, 4 * rows * width, lambda: (shapes.normal(rows, 2 * width), spec.swiglu_limit))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    device = find_device(parser.parse_args().device)

    # Every implementation that can run here is compared with the reference, between guards of poisoned memory.
    assert clamped_swiglu.make_samples is not None
    inputs = list(clamped_swiglu.make_samples(device.torch_device))
    checks = [*verify(clamped_swiglu, device, inputs), *list_unusable(clamped_swiglu, device)]
    for check in checks:
        print(f"{check.implementation:8} {check.sample:14} {check.status.value} {check.why}")

    # A model calls the op through its choice for one device; the ledger keeps what ran.
    ledger = Ledger()
    swiglu = clamped_swiglu.choose(device, asked=None, ledger=ledger)
    swiglu(*inputs[0].clone())
    for ran, entry in ledger.entries.items():
        print(f"ledger: {ran.op} ran as {ran.implementation}, {entry.calls} call")
    return int(any(check.status is Status.FAILED for check in checks))


if __name__ == "__main__":
    raise SystemExit(main())
