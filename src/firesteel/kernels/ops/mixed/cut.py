"""Cuts attention of prompts beside decoding requests: tiles of prompts, and room for splits.

Prompt steps in CUDA graphs have room for many requests, so `triton:decode` accepts most of them by their shapes and
cuts long prompts into small tiles. Here tiles are those of prompts, and the device splits keys by the real lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from firesteel.kernels.ops.attention_tiles import (
    LEAST_KEYS,
    MAX_SPLITS,
    MOST_PART_BYTES,
    PROGRAMS_PER_SM,
    Shapes,
    Tiles,
    cut_prefill,
)
from firesteel.kernels.tiles.launch import power_of_two

MOST_SPLIT_KEYS = 2048  # of one program, if splits are left: a long request must not outlast the prompt beside it
SPLIT_QUERIES = 128  # a request with more has at least 8 tiles per kv head; bounds the parts that are written


@dataclass(frozen=True, slots=True)
class MixedTiles:
    """Tiles of `base`; `split_keys` is the least number of keys for each of several splits."""

    base: Tiles
    split_keys: int

    def __str__(self) -> str:
        return f"{self.base} of {self.split_keys}"


def cut_whole(shapes: Shapes) -> Tiles:
    """Cuts tiles as for prompts, without splits."""
    return replace(cut_prefill(shapes), splits=1)


def cut_mixed(shapes: Shapes) -> MixedTiles:
    """Cuts tiles as for prompts; splits are as small as it takes to give each SM two programs."""
    plain = cut_whole(shapes)
    programs = shapes.kv_heads * plain.count(shapes)
    even = power_of_two(-(-shapes.longest * programs // (PROGRAMS_PER_SM * shapes.num_sms)))
    split_keys = max(min(even, MOST_SPLIT_KEYS), LEAST_KEYS)
    room = MOST_PART_BYTES // (4 * shapes.num_queries * shapes.heads * shapes.dim)
    splits = max(min(-(-shapes.longest // split_keys), MAX_SPLITS, room), 1)
    return MixedTiles(replace(plain, splits=power_of_two(splits + 1) // 2), split_keys)
