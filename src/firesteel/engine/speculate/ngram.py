"""Drafts by copying: what followed the latest earlier occurrence of a text's last tokens.

Answers repeat parts of their prompts (code that is edited, documents that are quoted, tool results) and their own
phrases. Looking one up costs the host microseconds and the GPU nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NUM_MATCHED = 3  # last tokens that must occur earlier
MOST_MATCHED = 32  # tokens up to which the common text before a draft is counted


class NgramIndex:
    """The places of all runs of `NUM_MATCHED` tokens in a text that grows."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        """Indexes `token_ids`, a list that only grows."""
        self.token_ids = token_ids
        self._ends: dict[tuple[int, ...], int] = {}  # run -> index after its latest occurrence
        self._num_indexed = 0  # ends up to here are indexed

    def find(self) -> int | None:
        """Returns the index after the latest earlier occurrence of the last tokens, or None."""
        tokens, length = self.token_ids, len(self.token_ids)
        if length <= NUM_MATCHED:
            return None
        self._index(length - 1)  # the run at the end itself is no earlier occurrence
        return self._ends.get(tuple(tokens[length - NUM_MATCHED :]))

    def _index(self, end: int) -> None:
        """Indexes all runs that end at or before `end`."""
        first = max(self._num_indexed + 1, NUM_MATCHED)
        if first > end:
            return
        tokens = np.asarray(self.token_ids[first - NUM_MATCHED : end], dtype=np.int64)
        runs = zip(
            *(tokens[place : len(tokens) - NUM_MATCHED + 1 + place].tolist() for place in range(NUM_MATCHED)),
            strict=True,
        )
        self._ends.update(zip(runs, range(first, end + 1), strict=True))
        self._num_indexed = end

    def count_common(self, place: int) -> int:
        """Returns how many tokens before `place` equal the last tokens of the text, up to `MOST_MATCHED`."""
        tokens, length = self.token_ids, len(self.token_ids)
        most = min(MOST_MATCHED, place)
        return next(
            (count for count in range(most) if tokens[place - 1 - count] != tokens[length - 1 - count]), most
        )

    def copy_after(self, place: int, count: int) -> list[int]:
        """Returns `count` tokens from `place` on; where the text ends, the copy continues with its own tokens."""
        copied = list(self.token_ids[place : place + count])
        period = len(self.token_ids) - place
        while len(copied) < count:
            copied.append(copied[len(copied) - period])
        return copied
