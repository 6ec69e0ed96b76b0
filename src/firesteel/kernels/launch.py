"""Launches a Triton kernel and notes it in the ledger; knows no kernel."""

from __future__ import annotations

from typing import Any

from firesteel.kernels.ledger import Launch, note


def launch_kernel(kernel: Any, grid: tuple[int, ...], *args: Any, tile: object = "", **options: Any) -> None:
    """`tile` is shown in the ledger, where a kernel has several. The interpreter compiles nothing."""
    compiled = kernel[grid](*args, **options)
    note(Launch(kernel.__name__, str(tile), "interpreted" if compiled is None else compiled.hash, compiled))
