"""Cuts rows of logits into pieces, so that temporary tensors stay small; knows only their width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_MOST_LOGITS = 2**23  # worked on together: 41 rows of gpt-oss, 64 MiB for each temporary of 8 bytes


def rows_at_once(vocab_size: int) -> int:
    return max(1, _MOST_LOGITS // vocab_size)


def pieces(rows: Sequence[int], vocab_size: int) -> Iterator[Sequence[int]]:
    step = rows_at_once(vocab_size)
    return (rows[start : start + step] for start in range(0, len(rows), step))
