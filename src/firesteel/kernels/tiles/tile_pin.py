"""Parses a pinned tile, ROWSxCOLUMNS."""

from __future__ import annotations

import re

from firesteel.errors import KernelError

AUTO = "auto"
LARGEST_SIDE, LARGEST_TILE = 256, 128 * 256  # the accumulators of larger tiles do not fit a CTA's registers


def parse_tile(text: str) -> tuple[int, int] | None:
    """Returns (rows, columns), or None if the choice is left to the kernel."""
    if text == AUTO:
        return None
    match = re.fullmatch(r"([0-9]+)x([0-9]+)", text)
    if match is None:
        raise KernelError(f"tile {text!r} is neither auto nor ROWSxCOLUMNS, as 64x128")
    return int(match[1]), int(match[2])


def refuse_tile(text: str, *, least_columns: int = 16) -> str | None:
    """Returns why a pinned tile is too large or too narrow, or None."""
    sizes = parse_tile(text)
    if sizes is None:
        return None
    if sizes[1] < least_columns:
        return f"takes tiles of at least {least_columns} columns, and {text} is pinned"
    if max(sizes) <= LARGEST_SIDE and sizes[0] * sizes[1] <= LARGEST_TILE:
        return None
    return f"takes tiles of at most 128x256 or 256x128, and {text} is pinned"
