"""Numbers of requests and drafted tokens that drafting steps are padded to.

A row more costs a draft network little, a pass more costs it a lot: so there are few numbers of requests, and most
numbers of tokens if each takes a pass.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

REQUESTS = (1, 2, 4, 8, 16, 32)  # more are drafted for in several steps
DRAFTED = (0, 1, 2, 3, 5)  # and the largest number


class DraftSize(NamedTuple):
    """Requests, rows and drafted tokens per request of a padded drafting step; with 0 tokens it only stores."""

    requests: int
    rows: int  # of all requests together
    drafted: int


class DraftSizes:
    """The sizes of an engine's drafting steps, of requests with up to `most` drafted tokens."""

    def __init__(self, most: int, most_requests: int, *, is_one_pass: bool) -> None:
        """If the network `is_one_pass`, fewer tokens would hardly cost less."""
        self.most = most
        self.rows_each = most + 1  # a verifying step has a row for each drafted token, and one more
        self.most_requests = min(most_requests, REQUESTS[-1])
        self.most_logits = self.most_requests * (most if is_one_pass else 1)  # rows with logits at a time
        self._requests = [*(count for count in REQUESTS if count < self.most_requests), self.most_requests]
        self._drafted = [0, most] if is_one_pass else [*(count for count in DRAFTED if count < most), most]

    def list_all(self) -> list[DraftSize]:
        """Lists the sizes, smallest first."""
        return [self._size(requests, drafted) for requests in self._requests for drafted in self._drafted]

    def find(self, requests: int, drafted: int) -> DraftSize:
        """Returns the size for at most `most_requests` requests, of which each has at most `rows_each` rows."""
        padded = self._requests[bisect_left(self._requests, requests)]
        return self._size(padded, self._drafted[bisect_left(self._drafted, drafted)])

    def _size(self, requests: int, drafted: int) -> DraftSize:
        return DraftSize(requests, requests * self.rows_each, drafted)
