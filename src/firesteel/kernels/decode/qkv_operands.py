"""The operands of decode_qkv, and random ones for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from firesteel.kernels.call_key import Described
from firesteel.kernels.op.operands import RoundedOperands
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.operands.shapes import PAGE_SIZE, ModelShapes, WorkloadPart
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.ops.rope_kv_write import FP8
from firesteel.kernels.rope import RopeSpec, rope_table
from firesteel.kernels.stream.shapes import list_cases, rounded_too
from firesteel.kernels.stream.workload import few_tokens, list_dense

HEAD_DIM = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeQkvOperands(RoundedOperands):
    """`activation` is bf16 or mxfp8: what the norm is rounded to before it meets an MXFP4 weight."""

    r: Tensor  # [T, H] bf16, the residual
    norm: Tensor  # [H] bf16
    eps: float
    weight: Tensor | Mxfp4Weight  # [(Q + 2K) D, H] bf16 or MXFP4; rows of queries, then keys, then values
    bias: Tensor  # [(Q + 2K) D] bf16
    table: Tensor  # [C, D] fp32, of rope_table
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64, page * S + offset; every slot at most once
    k_pages: Tensor  # [P, K, S, D], written: bf16, or fp8 E4M3, saturating at 448
    v_pages: Tensor  # the same for values
    key_scale: float = 1.0  # keys are divided by it before they are rounded to fp8; 1.0 in wider pages
    value_scale: float = 1.0  # the same for values
    # [1] int64: grows by the number of values beyond 448 once divided, of fp8 pages. The ledger lists it with
    # rope_kv_write, which writes the pages of a prompt.
    clipped: Tensor | None = None
    dependent: bool = False  # may begin before the kernel ahead of it ends; only weights and norm are read before
    describe = Described.describe  # a step has the same operands at every call

    @property
    def has_fp8_pages(self) -> bool:
        return self.k_pages.dtype == FP8

    @property
    def heads(self) -> int:
        """Returns Q, the number of query heads."""
        return self.weight.shape[0] // HEAD_DIM - 2 * self.k_pages.shape[1]

    def results(self, q: Tensor) -> tuple[Tensor, ...]:
        pages = (self.k_pages, self.v_pages)
        return (q, *pages) if self.clipped is None else (q, *pages, self.clipped)


def list_samples(device: torch.device) -> Iterator[Sample]:
    """Yields both formats of weights, with bf16 and with fp8 pages."""
    for label, tokens, sizes, draw in list_cases(device):
        table = rope_table(RopeSpec(theta=150000.0, factor=32.0), sizes.head_dim, 4096, device)
        rows = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
        for held, weight in draw.weights(rows, sizes.hidden):
            operands = DecodeQkvOperands(
                k_pages=draw.normal(5, sizes.kv_heads, 16, sizes.head_dim),
                v_pages=draw.normal(5, sizes.kv_heads, 16, sizes.head_dim),
                r=draw.normal(tokens, sizes.hidden),
                norm=draw.normal(sizes.hidden),
                eps=1e-5,
                weight=weight,
                bias=draw.normal(rows, scale=0.1),
                table=table,
                positions=draw.permutation(4096)[:tokens].clone(),
                slots=draw.permutation(80)[:tokens].clone(),
            )
            yield from rounded_too(label, held, operands)
            yield _fp8_sample(f"{label} {held}, fp8 pages", operands)


def _fp8_sample(label: str, operands: DecodeQkvOperands) -> Sample:
    """Returns a sample with fp8 pages.

    Of several tokens it has scales: under that of values some are far too large; all others and the keys fit.
    """
    stored = replace(operands, k_pages=operands.k_pages.to(FP8), v_pages=operands.v_pages.to(FP8))
    tokens = operands.r.shape[0]
    if tokens == 1:
        return Sample(label, (stored,))
    clipping = operands.bias.clone()
    clipping[-HEAD_DIM * operands.k_pages.shape[1] :: 7] = 100.0
    scaled = replace(
        stored,
        bias=clipping,
        activation="mxfp8" if isinstance(operands.weight, Mxfp4Weight) and tokens == 3 else "bf16",
        key_scale=0.023,
        value_scale=0.037,
        clipped=torch.full((1,), 5, device=operands.r.device),
    )
    return Sample(f"{label} with scales", (scaled,))


@few_tokens
def list_workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec, pages = shapes.spec, 2
    rows = spec.q_size + 2 * spec.kv_size

    def draw(weight: Tensor | Mxfp4Weight) -> DecodeQkvOperands:
        return DecodeQkvOperands(
            r=shapes.normal(m, spec.hidden_size),
            norm=shapes.bias(spec.hidden_size),
            eps=spec.rms_eps,
            weight=weight,
            bias=shapes.bias(rows),
            table=shapes.rope_table,
            positions=shapes.integers(spec.max_context, m),
            slots=shapes.permutation(pages * PAGE_SIZE)[:m].clone(),
            k_pages=shapes.normal(pages, spec.num_kv_heads, PAGE_SIZE, spec.head_dim),
            v_pages=shapes.normal(pages, spec.num_kv_heads, PAGE_SIZE, spec.head_dim),
            activation=activation,
        )

    yield from list_dense(shapes, m, activation, (rows, spec.hidden_size), draw)
