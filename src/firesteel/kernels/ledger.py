"""What ran: which implementation of which op, how often and for how long; knows no op."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Entry:
    calls: int = 0
    seconds: float = 0.0


class Ledger:
    """Counts calls; `timed` also measures them, which on a GPU waits for the device after each call."""

    def __init__(self, *, timed: bool = False) -> None:
        self.timed = timed
        self.entries: dict[tuple[str, str], Entry] = {}

    def run(self, op: str, implementation: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        entry = self.entries.setdefault((op, implementation), Entry())
        entry.calls += 1
        if not self.timed:
            return function(*args, **kwargs)
        _wait()
        start = time.perf_counter()
        result = function(*args, **kwargs)
        _wait()
        entry.seconds += time.perf_counter() - start
        return result

    def clear(self) -> None:
        self.entries.clear()


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
