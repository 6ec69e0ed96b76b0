"""Rotary position embedding on queries and keys, halves rotated (NeoX), with YaRN's frequencies.

in   q          [T, Q, D]
     k          [T, K, D]
     positions  [T] int64
     table      [C, D] fp32   row p: cos of D/2 angles, then sin, YaRN's concentration multiplied in
out  q, k       same shapes
Computed in fp32, rounded once on store.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.kernels.op import DeviceCode, Sample, define_op
from firesteel.kernels.tolerance import bf16
from firesteel.kernels.triton_ready import triton_ready


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Facts of the checkpoint. `factor` 1 is plain rope; otherwise YaRN stretches `original_context`."""

    theta: float
    factor: float = 1.0
    original_context: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = False


def rope_table(spec: RopeSpec, head_dim: int, context: int, device: torch.device) -> Tensor:
    positions = torch.arange(context, dtype=torch.float32, device=device)
    angles = torch.outer(positions, inverse_frequencies(spec, head_dim).to(device))
    concentration = 0.1 * math.log(spec.factor) + 1.0 if spec.factor > 1 else 1.0
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * concentration


def inverse_frequencies(spec: RopeSpec, head_dim: int) -> Tensor:
    """[D/2] fp32. YaRN keeps fast dimensions, divides slow ones by `factor`, and blends in between."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / spec.theta**exponents
    if spec.factor == 1:
        return plain
    low, high = _dimension(spec.beta_fast, spec, head_dim), _dimension(spec.beta_slow, spec, head_dim)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    slow = ramp.clamp(0, 1)
    return plain / spec.factor * slow + plain * (1 - slow)


def _dimension(rotations: float, spec: RopeSpec, head_dim: int) -> float:
    """The (fractional) dimension that turns `rotations` times within the original context."""
    turns = spec.original_context / (rotations * 2 * math.pi)
    return head_dim * math.log(turns) / (2 * math.log(spec.theta))


def _bytes(q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> int:
    return 2 * (q.nbytes + k.nbytes) + positions.numel() * (8 + table[0].nbytes)


@define_op(bytes=_bytes, tolerance=bf16(ulps=1, why="one rounding; a multiply-add may be fused"))
def rope(q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = table[positions].unsqueeze(1).chunk(2, dim=-1)
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _accepts(q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> str | None:
    if q.stride(-1) != 1 or k.stride(-1) != 1:
        return "wants heads whose values lie side by side"
    return None if positions.is_contiguous() and table.is_contiguous() else "wants contiguous positions and table"


@rope.implementation("triton", needs=triton_ready(), accepts=_accepts)
def triton_rope(q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    from firesteel.kernels.triton.rope import launch

    turned_q = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    turned_k = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    launch(q, k, positions, table, turned_q, turned_k)
    return turned_q, turned_k


@rope.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    from firesteel.kernels.triton.rope import HEADS_AT_ONCE, NUM_WARPS, rope_kernel

    signature = {"q": "*bf16", "k": "*bf16", "positions": "*i64", "table": "*fp32"}
    signature |= {"turned_q": "*bf16", "turned_k": "*bf16"}
    signature |= dict.fromkeys(("q_token_stride", "q_head_stride", "k_token_stride", "k_head_stride"), "i32:16")
    yield DeviceCode(
        variant="triton", kernel=rope_kernel, signature=signature,
        constants={"Q": 64, "K": 8, "D": 64, "HEADS": HEADS_AT_ONCE, "HALF": 32}, num_warps=NUM_WARPS,
    )  # fmt: skip


@rope.samples
def samples(device: torch.device) -> Iterator[Sample]:
    generator = torch.Generator(device).manual_seed(1)
    table = rope_table(RopeSpec(theta=150000.0, factor=32.0), 64, 131072, device)
    for tokens in (1, 3, 65):
        q = torch.randn(tokens, 64, 64, device=device, generator=generator).bfloat16()
        k = torch.randn(tokens, 8, 64, device=device, generator=generator).bfloat16()
        positions = torch.randint(131072, (tokens,), device=device, generator=generator)
        yield Sample(f"T={tokens}", (q, k, positions, table))
