"""Cuts attention of prompts beside decoding requests: tiles of prompts, and room for splits.

Prompt steps in CUDA graphs have room for many requests, so `triton:decode` accepts most of them by their shapes and
cuts long prompts into small tiles. Here tiles are those of prompts, and the device splits keys by the real lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from firesteel.kernels.ops.attention_tiles import (
    LEAST_KEYS,
    MOST_PART_BYTES,
    PROGRAMS_PER_SM,
    Shapes,
    Tiles,
    cut_prefill,
)

MOST_SPLIT_KEYS = 2048  # of one program, if slots are left: a long request must not outlast the prompt beside it
SPLIT_QUERIES = 128  # a request with more has at least 8 tiles per kv head, and is not split


@dataclass(frozen=True, slots=True)
class MixedTiles:
    """Tiles of `base`; the tiles of requests that are split share `slots` for their parts."""

    base: Tiles
    slots: int  # one for each split of a tile
    wanted: int  # programs per kv head that the keys of all tiles are divided among
    least_keys: int = LEAST_KEYS  # of a split
    most_keys: int = MOST_SPLIT_KEYS  # of a split, if there are slots enough

    def __str__(self) -> str:
        return str(self.base)

    def count_work(self, shapes: Shapes) -> int:
        """Returns the number of programs per kv head: tiles of any lengths, of the padding, and splits."""
        return self.base.count(replace(shapes, num_requests=shapes.num_requests + 1)) + self.slots


def cut_whole(shapes: Shapes) -> Tiles:
    """Cuts tiles as for prompts, without splits."""
    return replace(cut_prefill(shapes), splits=1)


def cut_mixed(shapes: Shapes) -> MixedTiles:
    """Cuts tiles as for prompts; there are slots for parts of MOST_PART_BYTES, unless all keys fit fewer."""
    base = cut_whole(shapes)
    slot_bytes = 4 * shapes.kv_heads * base.queries * base.head_rows * shapes.dim
    most_splits = -(-shapes.longest // LEAST_KEYS)
    slots = min(MOST_PART_BYTES // slot_bytes, base.count(shapes) * most_splits) if most_splits > 1 else 0
    return MixedTiles(base, slots, wanted=max(PROGRAMS_PER_SM * shapes.num_sms // shapes.kv_heads, 1))
