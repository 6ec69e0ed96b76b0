"""Ends a stream of text at the first stop string.

The first stop string is the one whose last character comes first, as if the text came character by character; of
two that end together it is the longer. So the cut does not depend on how the text is split into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes text through, but holds back an end that may become a stop string until the next piece."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None  # the stop string that ended the text

    def push(self, piece: str, *, can_stop: bool = True) -> str:
        """Returns the text that can be shown now, nothing after a stop string; `can_stop` off holds back none."""
        if self.matched is not None:
            return ""
        text = self._held + piece
        if not can_stop:
            self._held = ""
            return text
        matches = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if matches:
            end, _, self.matched = min(matches)
            return text[: end if self._include else end - len(self.matched)]
        safe = len(text) - self._count_held(text)
        self._held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """Returns the rest when the text ends without a stop string."""
        rest, self._held = self._held, ""
        return "" if self.matched is not None else rest

    def _count_held(self, text: str) -> int:
        """Returns the length of the longest end of the text that is the beginning of a stop string."""
        return max((_overlap(text, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
