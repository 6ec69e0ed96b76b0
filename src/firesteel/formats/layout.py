"""How the bytes of an MXFP4 matrix lie in memory: as in a checkpoint, or in the order a kernel streams them.

A layout packs codes [.., N, K/2] and scales [.., N, K/32] (as `mxfp4`) into bytes [.., N K 17/32] and takes them
apart again, bit for bit. All layouts of a matrix have one size, so `repack` works in place, a matrix at a time.
Knows no kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from firesteel.formats import group, mxfp4


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a matrix: N rows of K values."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.rows <= 0 or self.columns <= 0 or self.columns % group.SIZE:
            raise ValueError(f"a matrix of {self.rows} x {self.columns} has no whole groups of {group.SIZE}")

    @property
    def code_bytes(self) -> int:
        return self.rows * self.columns // 2

    @property
    def num_bytes(self) -> int:
        return self.code_bytes + self.rows * self.columns // group.SIZE


class Layout(Protocol):
    def pack(self, codes: Tensor, scales: Tensor) -> Tensor: ...

    def unpack(self, packed: Tensor, shape: Shape) -> tuple[Tensor, Tensor]: ...


class CheckpointLayout:
    """All codes of the matrix, row by row, then all scales. `unpack` gives views: a loader can read into them."""

    def pack(self, codes: Tensor, scales: Tensor) -> Tensor:
        group.check_shapes(codes, scales, values_per_byte=2)
        return torch.cat((codes.flatten(-2), scales.flatten(-2)), dim=-1)

    def unpack(self, packed: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
        _check_packed(packed, shape)
        codes, scales = packed.split([shape.code_bytes, shape.num_bytes - shape.code_bytes], dim=-1)
        return codes.unflatten(-1, (shape.rows, -1)), scales.unflatten(-1, (shape.rows, -1))


class TileLayout:
    """Tiles of 16 rows x 64 values, 544 bytes each, along K first: the left operand of four mma.m16n8k16.

    A tile is 32 lanes x 4 little-endian words, then 32 scales. Word s of lane 4g + t holds what the lane feeds to
    step s, columns k = 16 s + 2t: a0 (row g, k and k + 1), a1 (row g + 8), a2 (row g, k + 8 and k + 9) and a3 (row
    g + 8). The even column of each is in the low half-word, the odd one in the high; a half-word is the four signs,
    a0's in bit 15, then the four magnitudes of 3 bits, a0's in bits 11..9. So `h << i & 0x8000 | h << 3i & 0x0E00`
    is the value of a_i times 2^-14 in fp16. Scales: byte 4g + 2j + h is that of row g + 8h, group j.
    """

    ROWS = 16
    COLUMNS = 64
    BYTES = ROWS * COLUMNS // 2 + ROWS * COLUMNS // group.SIZE

    def pack(self, codes: Tensor, scales: Tensor) -> Tensor:
        group.check_shapes(codes, scales, values_per_byte=2)
        shape = Shape(codes.shape[-2], 2 * codes.shape[-1])
        self._check(shape)
        # row = 8 h + g, column = 16 s + 8 q + 2 t + odd; a_i has i = 2 q + h
        nibbles = mxfp4.unpack(codes).unflatten(-1, (-1, 4, 2, 4, 2)).unflatten(-6, (-1, 2, 8))
        nibbles = _permute_last(nibbles, "R h g C s q t o", "R C g t s o q h").flatten(-2)  # [.., i]
        place = torch.arange(4, dtype=torch.int32, device=codes.device)
        signs = (nibbles >> 3).int() << (15 - place)
        magnitudes = (nibbles & 7).int() << (9 - 3 * place)
        halves = (signs | magnitudes).sum(-1, dtype=torch.int32)
        values = torch.stack((halves & 255, halves >> 8), dim=-1).to(torch.uint8).flatten(-5)
        tiled = scales.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2, 8))
        tiled = _permute_last(tiled, "R h g C j", "R C g j h").flatten(-3)
        return torch.cat((values, tiled), dim=-1).flatten(-3)

    def unpack(self, packed: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
        self._check(shape)
        _check_packed(packed, shape)
        tiles = packed.unflatten(-1, (shape.rows // self.ROWS, shape.columns // self.COLUMNS, self.BYTES))
        values, tiled = tiles.split([512, 32], dim=-1)
        low, high = values.unflatten(-1, (8, 4, 4, 2, 2)).int().unbind(-1)
        halves = (low | (high << 8)).unsqueeze(-1)
        place = torch.arange(4, dtype=torch.int32, device=packed.device)
        nibbles = (halves >> (15 - place) & 1) << 3 | (halves >> (9 - 3 * place) & 7)
        nibbles = nibbles.to(torch.uint8).unflatten(-1, (2, 2))
        nibbles = _permute_last(nibbles, "R C g t s o q h", "R h g C s q t o").flatten(-5).flatten(-4, -2)
        scales = _permute_last(tiled.unflatten(-1, (8, 2, 2)), "R C g j h", "R h g C j").flatten(-2).flatten(-4, -2)
        return mxfp4.pack(nibbles), scales

    def _check(self, shape: Shape) -> None:
        if shape.rows % self.ROWS or shape.columns % self.COLUMNS:
            raise ValueError(
                f"a matrix of {shape.rows} x {shape.columns} has no whole tiles of {self.ROWS} x {self.COLUMNS}"
            )


def repack(packed: Tensor, shape: Shape, source: Layout, target: Layout) -> None:
    """Rewrites matrices [.., bytes] from one layout to another, in place.

    Takes room for one matrix's temporaries, about 20 bytes a value: 0.3 GB for a gate_up of gpt-oss.
    """
    if not packed.is_contiguous():
        raise ValueError("only contiguous matrices are repacked in place")
    for matrix in packed.view(-1, packed.shape[-1]):
        matrix.copy_(target.pack(*source.unpack(matrix, shape)))


def _check_packed(packed: Tensor, shape: Shape) -> None:
    if packed.dtype != torch.uint8 or packed.shape[-1] != shape.num_bytes:
        raise ValueError(
            f"a packed matrix of {shape.rows} x {shape.columns} is {shape.num_bytes} bytes of uint8, "
            f"not {packed.shape[-1]} of {packed.dtype}"
        )


def _permute_last(x: Tensor, before: str, after: str) -> Tensor:
    """Permutes the last dimensions, named by letters."""
    names, wanted = before.split(), after.split()
    kept = x.dim() - len(names)
    return x.permute(*range(kept), *(kept + names.index(name) for name in wanted))
