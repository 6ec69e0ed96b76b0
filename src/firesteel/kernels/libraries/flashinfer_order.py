"""The order in which FlashInfer's matmuls on Hopper and on Blackwell read MXFP4 codes and scales; all is exact.

On Hopper a thread of an MMA reads 32 bits with eight codes of two rows, eight apart. For bf16 activations the bits
of the word are spread so that a few shifts widen them; for FP8 activations only the signs move. R rows, K columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD_BYTES = 4
# (first bit, how many, where to) of a word; together they permute its 32 bits
BF16_MOVES = (
    *((7, 1, 31), (4, 3, 22), (3, 1, 15), (0, 3, 6), (15, 1, 28), (12, 3, 19), (11, 1, 12), (8, 3, 3)),
    *((23, 1, 25), (20, 3, 16), (19, 1, 9), (16, 3, 0), (31, 1, 30), (28, 1, 29), (29, 2, 26), (27, 1, 14)),
    *((24, 1, 13), (25, 2, 10)),
)
FP8_MOVES = (
    *((4 * code, 3, 4 * code) for code in range(8)),
    *((3, 1, 7), (7, 1, 15), (11, 1, 23), (15, 1, 31), (19, 1, 3), (23, 1, 11), (27, 1, 19), (31, 1, 27)),
)
# Axes of the bytes of codes, [E, R/16, 2, 8, K/64, ...], and where each goes. For bf16 the last are the halves of
# 32 columns, of 16 and of 8, and 4 bytes of 2 codes; for FP8 the halves of 32 and of 16, and 4 pairs of bytes.
BF16_AXES = ((2, 2, 2, 4), (0, 1, 6, 3, 4, 5, 8, 7, 2))
FP8_AXES = ((2, 2, 4, 2), (0, 1, 6, 3, 4, 5, 7, 2, 8))
AXES = {"bf16": BF16_AXES, "fp8": FP8_AXES}
MOVES = {"bf16": BF16_MOVES, "fp8": FP8_MOVES}
SCALE_GROUPS = 4  # of a tile of scales
HOPPER_ROWS, BLACKWELL_ROWS = (
    (4, 16),
    (4, 32),
)  # of a tile of scales: parts that stand side by side, and rows of each
SCALE_PLACES = (0, 1, 4, 3, 2, 5)  # its own inverse


def order_codes(codes: Tensor, kind: str) -> Tensor:
    """Reorders [E, R, K/2] bytes of codes for `kind` activations; R is a multiple of 16, K of 64."""
    split, places = AXES[kind]
    words = codes.unflatten(1, (-1, 2, 8)).unflatten(4, (-1, *split)).permute(places)
    return _move_bits(words.reshape(-1, WORD_BYTES), MOVES[kind]).view(codes.shape)


def restore_codes(ordered: Tensor, kind: str) -> Tensor:
    """Inverts `order_codes`."""
    split, places = AXES[kind]
    experts, rows, columns = ordered.shape
    sizes = (experts, rows // 16, 2, 8, columns // 32, *split)
    back = tuple((target, width, first) for first, width, target in MOVES[kind])
    words = _move_bits(ordered.reshape(-1, WORD_BYTES), back).view([sizes[place] for place in places])
    inverse = [places.index(axis) for axis in range(len(places))]
    return words.permute(inverse).reshape(ordered.shape)


def order_scales(scales: Tensor, rows: tuple[int, int]) -> Tensor:
    """Reorders [E, R, K/32] scales; returns [E, tiles of rows, tiles of groups, 16 or 32, 16]."""
    tiles = scales.unflatten(1, (-1, *rows)).unflatten(4, (-1, SCALE_GROUPS))
    ordered: Tensor = tiles.permute(SCALE_PLACES).flatten(4).contiguous()
    return ordered


def restore_scales(ordered: Tensor, rows: tuple[int, int]) -> Tensor:
    """Inverts `order_scales`."""
    tiles = ordered.unflatten(4, (rows[0], SCALE_GROUPS)).permute(SCALE_PLACES)
    restored: Tensor = tiles.flatten(4).flatten(1, 3)
    return restored


def _move_bits(words: Tensor, moves: tuple[tuple[int, int, int], ...]) -> Tensor:
    """Permutes the bits of little-endian words, given as [N, 4] bytes."""
    wide = words.contiguous().view(torch.int32).to(torch.int64)
    moved = torch.zeros_like(wide)
    for first, width, target in moves:
        moved |= (wide >> first & (1 << width) - 1) << target
    return moved.to(torch.int32).view(torch.uint8)
