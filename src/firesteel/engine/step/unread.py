"""Steps of which nothing is read: pieces of a prompt that are neither the last one nor scored."""

from __future__ import annotations

from torch import Tensor

from firesteel.engine.transfer import Download


class UnreadSteps:
    """Bounds the unread steps that the device has not run yet to two.

    The device always has work, and a request that arrives does not wait for all pieces of a long prompt.
    """

    def __init__(self) -> None:
        self._last: Download | None = None  # behind the last step, if nothing was read of it

    def add(self, logits: Tensor) -> None:
        """Adds the step just launched, which writes `logits`, and waits for the one before if that was not read."""
        before, self._last = self._last, Download(logits[:0])
        if before is not None:
            before.read()

    def clear(self) -> bool:
        """Forgets them, as a later step was read; returns whether there were none."""
        before, self._last = self._last, None
        return before is None
