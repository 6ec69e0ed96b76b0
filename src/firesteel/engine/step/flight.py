"""Decoding steps that were launched one after the other and are still to be read; knows no device or scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from firesteel.engine.sample.pending import Fetched
from firesteel.types import Plan


@dataclass(slots=True)
class Flight:
    """Open: the next step may follow the last on the device, without a new beginning."""

    last: Plan | None = None  # launched; None once it is closed
    launched: deque[tuple[Plan, Fetched]] = field(default_factory=deque)

    @property
    def is_open(self) -> bool:
        return self.last is not None

    def add(self, plan: Plan, fetched: Fetched) -> None:
        self.last = plan
        self.launched.append((plan, fetched))

    def close(self) -> None:
        self.last = None

    def drop_unwanted(self, is_wanted: Callable[[Plan], bool]) -> None:
        """Steps of whose requests none is left: their tokens are not waited for."""
        while self.launched and not is_wanted(self.launched[0][0]):
            self.launched.popleft()
