"""The experts of a layer as FlashInfer's `cutlass_fused_moe` reads them: up before gate, padded, reordered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.formats.group import SIZE
from firesteel.kernels.libraries.flashinfer_order import (
    BLACKWELL_ROWS,
    HOPPER_ROWS,
    order_codes,
    order_scales,
    restore_codes,
    restore_scales,
)
from firesteel.kernels.operands.weights import Experts, ExpertTensors

PADDED = 128  # rows and columns of each matmul are a multiple of it
UNIT = 127  # the scale of padding: 1
MOST_SPAN = 11  # between the exponents of an expert's scales: E4M3 has room for that many above those of E2M1
FOLDED = 2.0**5  # of a residual: the library multiplies by 2^6, and counts exponents from one below the least
AT_ONCE = 8  # experts reordered together: bits are moved in words of 64
# Rows of scales behind those of the last expert: where a CTA of a cluster of two has no rows of weights left, it
# still reads the scales of the strip that would follow, of up to 256 rows.
SPARE_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashinferExperts(ExpertTensors):
    """`kind` is what activations are rounded to: bf16 and fp8 on Hopper, mxfp8 on Blackwell.

    For fp8 the exponents of scales are folded into the codes before they are multiplied: a scale is its distance to
    the least exponent of the expert, which is in the residual. Experts whose exponents span more than 11 lose the
    smallest values, as in the library; -0 becomes 0.
    """

    kind: str
    gate_up_values: Tensor  # [E, 2I, H/2] uint8, up and then gate, all padded
    gate_up_scales: Tensor
    gate_up_residual: Tensor | None  # [E] fp32, of fp8
    gate_up_bias: Tensor  # [E, 2I] bf16
    down_values: Tensor  # [E, H, I/2] uint8
    down_scales: Tensor
    down_residual: Tensor | None
    down_bias: Tensor  # [E, H] bf16
    hidden: int
    inter: int

    @classmethod
    def pack(cls, experts: Experts, kind: str) -> FlashinferExperts:
        hidden, inter = experts.down_bias.shape[1], experts.gate_up_bias.shape[1] // 2
        up_codes, up_scales, up_residual = _pack(experts.gate_up_codes, experts.gate_up_scales, kind, is_up=True)
        down_codes, down_scales, down_residual = _pack(experts.down_codes, experts.down_scales, kind, is_up=False)
        return cls(
            kind=kind,
            gate_up_values=up_codes,
            gate_up_scales=up_scales,
            gate_up_residual=up_residual,
            gate_up_bias=_split_gate(experts.gate_up_bias[..., None], 0)[..., 0].contiguous(),
            down_values=down_codes,
            down_scales=down_scales,
            down_residual=down_residual,
            down_bias=_pad(experts.down_bias[..., None], 0)[..., 0].contiguous(),
            hidden=hidden,
            inter=inter,
        )

    def unpack(self) -> Experts:
        """Returns the experts in the checkpoint's order, as the library computes with them."""
        up = (self.gate_up_values, self.gate_up_scales, self.gate_up_residual)
        down = (self.down_values, self.down_scales, self.down_residual)
        up_codes, up_scales = (_join_gate(part, self.inter) for part in _unpack(*up, self.kind))
        down_codes, down_scales = (part[:, : self.hidden] for part in _unpack(*down, self.kind))
        hidden, inter = self.hidden, self.inter
        return Experts(
            gate_up_codes=up_codes[..., : hidden // 2].contiguous(),
            gate_up_scales=up_scales[..., : hidden // SIZE].contiguous(),
            gate_up_bias=_join_gate(self.gate_up_bias[..., None], inter)[..., 0].contiguous(),
            down_codes=down_codes[..., : inter // 2].contiguous(),
            down_scales=down_scales[..., : inter // SIZE].contiguous(),
            down_bias=self.down_bias[:, :hidden].contiguous(),
        )

    @property
    def padded_hidden(self) -> int:
        return self.down_values.shape[1]


def fold_scales(codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns codes, offsets from 1 on and residuals [E]: a value is code * 2^offset * residual / 64.

    A scale too far below the largest of its expert is raised, and its codes are rounded to fewer, as Humming does.
    """
    flat = scales.flatten(1).int()
    largest, least = flat.amax(1), flat.amin(1)
    least = torch.maximum(least, largest - MOST_SPAN)[:, None, None]
    raised = torch.maximum(scales.int(), least)
    rewritten = _rewrite_codes(codes, raised - scales.int())
    residual = torch.exp2(least[:, 0, 0].double() - UNIT) * FOLDED
    return rewritten, (raised - least + 1).to(torch.uint8), residual.float()


def unfold_scales(offsets: Tensor, residual: Tensor) -> Tensor:
    least = torch.log2(residual.double() / FOLDED) + UNIT
    return (offsets.int() - 1 + least.round().int()[:, None, None]).to(torch.uint8)


def _rewrite_codes(codes: Tensor, raised_by: Tensor) -> Tensor:
    """Divides the values of each group by 2^raised_by, to the nearest code, ties away from zero; -0 becomes 0."""
    table = make_rewrites().to(codes.device)
    by = raised_by.clamp(max=table.shape[0] - 1).repeat_interleave(SIZE // 2, -1)
    low, high = table[by, (codes & 15).int()], table[by, (codes >> 4).int()]
    return low | high << 4


def make_rewrites() -> Tensor:
    """Returns [6, 16] codes: the nearest to the values of the sixteen codes over 1, 2, 4, 8, 16 and 32 or more."""
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    borders = (magnitudes[1:] + magnitudes[:-1]) / 2
    smaller = magnitudes / torch.exp2(torch.arange(6.0))[:, None]
    rewritten = torch.bucketize(smaller, borders, right=True).to(torch.uint8)
    signed = torch.where(rewritten > 0, rewritten | 8, rewritten)
    return torch.cat([rewritten, signed], dim=1)


def _pack(codes: Tensor, scales: Tensor, kind: str, *, is_up: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    parts = [_pack_few(*few, kind, is_up) for few in zip(codes.split(AT_ONCE), scales.split(AT_ONCE), strict=True)]
    values, ordered, residuals = zip(*parts, strict=True)
    residual = torch.cat(residuals) if kind == "fp8" else None
    return torch.cat(values), _join_scales(ordered, SPARE_ROWS * (2 * values[0].shape[2] // SIZE)), residual


def _join_scales(parts: Sequence[Tensor], spare: int) -> Tensor:
    """Joins the scales of experts, with some bytes to spare behind them in the same memory."""
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    size = math.prod(shape)
    memory = torch.zeros(size + spare, dtype=torch.uint8, device=parts[0].device)
    return torch.cat(list(parts), out=memory[:size].view(shape))


def _pack_few(codes: Tensor, scales: Tensor, kind: str, is_up: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    residual, padding = None, UNIT
    if kind == "fp8":
        codes, scales, residual = fold_scales(codes, scales)
        padding = 1
    place: Callable[[Tensor, int], Tensor] = _split_gate if is_up else _pad
    columns = -(2 * codes.shape[2]) % PADDED
    codes = torch.nn.functional.pad(place(codes, 0), (0, columns // 2))
    scales = torch.nn.functional.pad(place(scales, padding), (0, columns // SIZE), value=padding)
    if kind == "mxfp8":
        return codes.contiguous(), order_scales(scales, BLACKWELL_ROWS), None
    return order_codes(codes, kind), order_scales(scales, HOPPER_ROWS), residual


def _unpack(values: Tensor, scales: Tensor, residual: Tensor | None, kind: str) -> tuple[Tensor, Tensor]:
    """Returns codes and scales, still padded."""
    if kind == "mxfp8":
        return values, restore_scales(scales, BLACKWELL_ROWS)
    codes = torch.cat([restore_codes(part, kind) for part in values.split(AT_ONCE)])
    restored = restore_scales(scales, HOPPER_ROWS)
    return codes, restored if residual is None else unfold_scales(restored, residual)


def _split_gate(rows: Tensor, padding: int) -> Tensor:
    """Returns [E, 2I, ...] whose rows alternate gate, up as up and then gate, each padded."""
    return torch.cat([_pad(rows[:, 1::2], padding), _pad(rows[:, ::2], padding)], dim=1)


def _join_gate(rows: Tensor, inter: int) -> Tensor:
    up, gate = rows.chunk(2, dim=1)
    return torch.stack([gate[:, :inter], up[:, :inter]], dim=2).flatten(1, 2)


def _pad(rows: Tensor, padding: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[1] % PADDED), value=padding)
