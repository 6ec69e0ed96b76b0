"""Chooses the experts of each token and their weights.

in   RouteOperands
out  ids      [T, A] int64   largest logit first; -1, no expert, in rows of padding
     weights  [T, A] fp32    softmax over the chosen logits only; 0 in rows of padding
Computed in fp32. Of equal logits `triton` takes the lowest ids, in order; torch.topk leaves the choice open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from firesteel.kernels.op.device_code import DeviceCode
from firesteel.kernels.op.needs import triton_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.operands import Operands
from firesteel.kernels.op.profile import MOE_OVERHEAD, OpProfile
from firesteel.kernels.op.rows import Rows, rows_of
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import fp32
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart
from firesteel.kernels.ops.fixed_rows import multiply, on_cpu
from firesteel.kernels.ops.linear_code import MOST_TOKENS

NO_EXPERT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOperands(Operands):
    x: Tensor  # [T, H]
    weight: Tensor  # [E, H] bf16
    bias: Tensor  # [E] bf16
    active: int  # experts per token, A
    num_tokens: Tensor | None = None  # [1] int64: rows from there on are padding


def _bytes(operands: RouteOperands) -> int:
    x = operands.x
    return x.nbytes + operands.weight.nbytes + operands.bias.nbytes + x.shape[0] * operands.active * 12


def _count_rows(operands: RouteOperands) -> int:
    """Returns the number of rows that are not padding."""
    return len(operands.x) if operands.num_tokens is None else int(operands.num_tokens)


def _keep_rows(operands: RouteOperands, rows: Sequence[int]) -> RouteOperands:
    kept: RouteOperands = rows_of("x").keep(replace(operands, num_tokens=None), rows)
    return kept


@define_op(
    bytes=_bytes,
    tolerance=fp32(worst=1e-4, rms=1e-5, why="fp32 sums in free order; samples have no near ties"),
    keeps_choice=True,
    profile=OpProfile(MOE_OVERHEAD, reads="route", kernels={"choose_kernel": ""}),
    rows=Rows(count=_count_rows, keep=_keep_rows, results=lambda operands, result: list(result)),
)
def route(operands: RouteOperands) -> tuple[Tensor, Tensor]:
    logits = operands.x.float() @ operands.weight.float().T + operands.bias.float()
    return _choose(logits, operands)


def _choose(logits: Tensor, operands: RouteOperands) -> tuple[Tensor, Tensor]:
    num_tokens = operands.num_tokens
    chosen, ids = logits.topk(operands.active, dim=-1)
    weights = chosen.softmax(dim=-1)
    if num_tokens is None:
        return ids, weights
    is_padding = (torch.arange(len(logits), device=logits.device) >= num_tokens)[:, None]
    return ids.masked_fill(is_padding, NO_EXPERT), weights.masked_fill(is_padding, 0.0)


def _accepts(operands: RouteOperands) -> str | None:
    x, weight = operands.x, operands.weight
    if x.dtype != weight.dtype or x.dtype not in (torch.bfloat16, torch.float16):
        return f"multiplies bf16 by bf16 or fp16 by fp16, not {x.dtype} by {weight.dtype}"
    return None if x.stride(-1) == 1 and weight.stride(-1) == 1 else "wants rows whose values lie side by side"


@route.implementation("triton", needs=triton_ready(), accepts=_accepts)
def triton_route(operands: RouteOperands) -> tuple[Tensor, Tensor]:
    from firesteel.kernels.triton.route import launch

    x, active = operands.x, operands.active
    tokens, experts = x.shape[0], operands.weight.shape[0]
    logits = torch.empty(tokens, experts, dtype=torch.float32, device=x.device)
    ids = torch.empty(tokens, active, dtype=torch.int64, device=x.device)
    weights = torch.empty(tokens, active, dtype=torch.float32, device=x.device)
    launch(x, operands.weight, operands.bias, logits, ids, weights, operands.num_tokens)
    return ids, weights


@route.implementation("triton:invariant", needs=triton_ready(), accepts=_accepts, is_row_invariant=True)
def triton_invariant(operands: RouteOperands) -> tuple[Tensor, Tensor]:
    """Multiplies any number of tokens with one tile."""
    from firesteel.kernels.ops import invariant_tiles

    x, weight = operands.x, operands.weight
    logits = torch.empty(x.shape[0], weight.shape[0], dtype=torch.float32, device=x.device)
    invariant_tiles.multiply_dense(x, weight, operands.bias, logits, invariant_tiles.router_tile())
    return invariant_tiles.choose_experts(logits, operands.active, operands.num_tokens)


@route.implementation("torch:invariant", needs=on_cpu, is_row_invariant=True)
def torch_invariant(operands: RouteOperands) -> tuple[Tensor, Tensor]:
    """Multiplies as many tokens at a time as every other call."""
    return _choose(multiply(operands.x.float(), operands.weight.float()) + operands.bias.float(), operands)


route.prefer("triton")


@route.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    from firesteel.kernels.triton import linear as code
    from firesteel.kernels.triton.route import NUM_WARPS, VECTOR_TOKENS, choose_kernel

    signature = {"x": "*bf16", "weight": "*bf16", "bias": "*bf16", "y": "*fp32"}
    signature |= {"x_stride": "i32:16", "weight_stride": "i32:16"}
    yield DeviceCode(
        variant="triton logits",
        kernel=code.vector_kernel,
        signature=signature,
        constants={"M": 128, "N": 2880, "ROWS": code.vector_rows(128), "COLUMNS": code.VECTOR_COLUMNS},
        num_warps=code.VECTOR_WARPS,
    )
    for tile in dict.fromkeys(code.pick_tile(tokens, 128) for tokens in (VECTOR_TOKENS + 1, MOST_TOKENS)):
        constants = {"M": 128, "N": 2880, "TOKENS": tile.tokens, "ROWS": tile.rows, "COLUMNS": tile.columns}
        yield DeviceCode(
            variant=f"triton logits {tile.tokens}x{tile.rows}x{tile.columns}",
            kernel=code.tile_kernel,
            signature={**signature, "T": "i32"},
            constants=constants,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    results = {"logits": "*fp32", "ids": "*i64", "weights": "*fp32"}
    sizes = {"E": 128, "A": 4, "EXPERTS": 128, "RANKS": 4}
    yield DeviceCode(
        variant="triton choice",
        kernel=choose_kernel,
        signature=results,
        constants={"num_tokens": None, **sizes},
        num_warps=NUM_WARPS,
    )
    yield DeviceCode(
        variant="triton choice, padded",
        kernel=choose_kernel,
        signature={**results, "num_tokens": "*i64"},
        constants=sizes,
        num_warps=NUM_WARPS,
    )


@route.samples
def samples(device: torch.device) -> Iterator[Sample]:
    """Yields logits at least half a unit apart within a token, so that rounding cannot change the choice."""
    generator = torch.Generator(device).manual_seed(1)
    for tokens, experts in ((1, 128), (3, 32), (65, 128)):
        x = torch.zeros(tokens, 2880, device=device)
        for row in x:
            row[:experts] = torch.randperm(experts, device=device, generator=generator) - experts / 2
        weight = torch.eye(experts, 2880, device=device).bfloat16()
        bias = torch.rand(experts, device=device, generator=generator).mul(0.4).bfloat16()
        operands = RouteOperands(x=x.bfloat16(), weight=weight, bias=bias, active=4)
        yield Sample(f"T={tokens} E={experts}", (operands,))
        if tokens > 1:
            padded = replace(operands, num_tokens=torch.tensor([tokens - 2], device=device))
            yield Sample(f"T={tokens} E={experts}, 2 of padding", (padded,))


@route.workloads
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    """Yields logits that are distinct integers within a token, so that rounding cannot change the choice."""
    experts, hidden = shapes.spec.num_experts, shapes.spec.hidden_size

    def draw() -> tuple[RouteOperands]:
        x = torch.zeros(m, hidden, dtype=shapes.dtype, device=shapes.device)
        order = torch.rand(m, experts, generator=shapes.generator, device=shapes.device).argsort(-1)
        x[:, :experts] = order - experts // 2
        weight = torch.eye(experts, hidden, device=shapes.device).to(shapes.dtype)
        bias = torch.zeros(experts, dtype=shapes.dtype, device=shapes.device)
        return (RouteOperands(x=x, weight=weight, bias=bias, active=shapes.spec.num_active),)

    yield WorkloadPart("", 2.0 * m * experts * hidden, 4 * m * hidden, draw)
