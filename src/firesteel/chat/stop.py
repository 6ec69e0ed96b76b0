"""Ends a stream of text at the first stop string; knows text, not tokens.

The first is the one whose last character comes first, as if the text came one character at a time; of two that end
together it is the longer. So where the text is cut does not depend on the pieces it comes in.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes text on, except an end that may yet become a stop string: that waits for the next piece."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None  # the stop string that ended the text

    def push(self, piece: str, *, can_stop: bool = True) -> str:
        """What can be shown now; nothing more once a stop string came. Text that cannot stop is not held either."""
        if self.matched is not None:
            return ""
        text = self._held + piece
        if not can_stop:
            self._held = ""
            return text
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if found:
            end, _, self.matched = min(found)
            return text[: end if self._include else end - len(self.matched)]
        safe = len(text) - self._count_held(text)
        self._held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """The rest, when the text ends by itself."""
        rest, self._held = self._held, ""
        return "" if self.matched is not None else rest

    def _count_held(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        return max((_overlap(text, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
