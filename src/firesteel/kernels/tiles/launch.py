"""Launches a Triton kernel and notes it in the ledger; knows no kernel."""

from __future__ import annotations

from typing import Any

from firesteel.kernels.ledger import Launch, note
from firesteel.kernels.tiles.tuned import change_options


def launch_kernel(kernel: Any, grid: tuple[int, ...], *args: Any, tile: object = "", **options: Any) -> None:
    """`tile` is shown in the ledger, where a kernel has several. The interpreter compiles nothing."""
    name = kernel.__name__
    used = change_options(name, options)
    compiled = kernel[grid](*args, **used)
    label = str(tile) if used is options else f"{tile} tuned"
    note(Launch(name, label, "interpreted" if compiled is None else compiled.hash, compiled))
