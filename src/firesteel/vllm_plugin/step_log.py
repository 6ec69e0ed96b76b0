"""Counts the steps of a worker by kind, though vLLM replays its graphs without calling the model.

The builder of attention metadata announces every step, the model says what it computed itself, and the call for
logits that follows tells the two kinds apart.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field

_log = logging.getLogger("vllm.firesteel")
FIRST_REPORT = 16  # steps after which the first report is logged
REPORT_S = 60.0  # between later reports, while steps run


@dataclass(slots=True)
class StepLog:
    """The last step, and how many there were of each kind."""

    num_requests: int = 0  # of the last step, with padding; 0 if it was not announced
    is_decoding: bool = False
    was_called: bool = False  # the model computed it itself; else vLLM replayed a graph
    is_open: bool = False  # nobody has asked for its logits yet
    kinds: Counter[str] = field(default_factory=Counter)
    num_steps: int = 0
    _reported: float = field(default_factory=time.monotonic)

    def announce(self, num_requests: int, is_decoding: bool) -> None:
        """Opens a step; metadata builders call it once per kind of layer, before the step runs or is replayed."""
        self.num_requests, self.is_decoding = num_requests, is_decoding
        self.was_called, self.is_open = False, True

    def close(self, called_kind: str) -> bool:
        """Counts the step when its logits are asked for; `called_kind` describes it if the model computed it.

        Returns false if no step was announced, as when vLLM measures memory, or if it was counted before.
        """
        if not self.is_open:
            return False
        self.is_open = False
        replayed = f"decode graph of {self.num_requests}"
        self.kinds[called_kind if self.was_called else replayed] += 1
        self.num_steps += 1
        now = time.monotonic()
        if self.num_steps == FIRST_REPORT or now - self._reported > REPORT_S:
            self._reported = now
            _log.info("firesteel: steps so far: %s", self)
        return True

    def __str__(self) -> str:
        return ", ".join(f"{count} x {kind}" for kind, count in sorted(self.kinds.items()))
