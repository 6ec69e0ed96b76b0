"""Reads a pinned tile, ROWSxCOLUMNS; knows no kernel."""

from __future__ import annotations

import re

from firesteel.errors import KernelError

AUTO = "auto"


def parse_tile(text: str) -> tuple[int, int] | None:
    """(rows, columns), or None where the choice is left to the kernel."""
    if text == AUTO:
        return None
    found = re.fullmatch(r"([0-9]+)x([0-9]+)", text)
    if found is None:
        raise KernelError(f"tile {text!r} is neither auto nor ROWSxCOLUMNS, as 64x128")
    return int(found[1]), int(found[2])
