"""Last pages of texts, which are filled in part only, for requests that continue the text: the next turn of a chat.

A filled page can be shared, since nobody writes to it again. A page that is filled in part belongs to one request,
which fills the rest. So a tail is taken, not shared, and only while nobody holds it.
"""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from firesteel.engine.cache.page_pool import PagePool

MOST_BRANCHES = 16  # tails kept behind the same pages: texts that go on differently


@dataclass(frozen=True, slots=True, eq=False)
class PageTail:
    """The tokens in a page of each kind, behind the pages whose digest is `before`."""

    before: bytes
    token_ids: array[int]
    pages: Mapping[str, int]  # by kind
    number: int  # of this tail

    def key(self, kind: str) -> Hashable:
        return "tail", kind, self.number

    def count_common(self, token_ids: Sequence[int]) -> int:
        """Returns the number of first tokens that both have in common."""
        pairs = enumerate(zip(self.token_ids, token_ids, strict=False))
        return next(
            (place for place, (ours, theirs) in pairs if ours != theirs), min(len(self.token_ids), len(token_ids))
        )


class PageTails:
    """The tails of a pool. A page of a tail may be evicted at any time; the tail is then of no use."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self._branches: dict[bytes, deque[PageTail]] = {}  # by the digest before; newest last
        self._numbers = itertools.count()
        self._num_kept = 0

    def keep(self, before: bytes, token_ids: Sequence[int], pages: Mapping[str, int]) -> None:
        """Keeps the content of pages that their only holder is about to release."""
        tail = PageTail(before, array("q", token_ids), dict(pages), next(self._numbers))
        for kind, page in tail.pages.items():
            self.pool.remember(page, tail.key(kind))
        branches = self._branches.setdefault(before, deque())
        branches.append(tail)
        self._num_kept += 1
        if len(branches) > MOST_BRANCHES:
            self._drop(branches[0])
        if self._num_kept > self.pool.num_pages:  # every tail in use has a page, so some have lost theirs
            self._drop_evicted()

    def find(self, before: bytes, token_ids: Sequence[int]) -> tuple[PageTail, int] | None:
        """Returns the tail that has most tokens in common with `token_ids`, and their number."""
        counted = [(tail, tail.count_common(token_ids)) for tail in self._branches.get(before, ())]
        usable = [(tail, count) for tail, count in counted if count and self._is_whole(tail)]
        return max(usable, key=lambda found: found[1], default=None)

    def take(self, tail: PageTail) -> None:
        """Makes the caller the only holder of the tail's pages, which nobody finds any longer."""
        for kind, page in tail.pages.items():
            self.pool.hold(page)
            self.pool.forget(tail.key(kind))
        self._remove(tail)

    def _is_whole(self, tail: PageTail) -> bool:
        """Returns whether no page of the tail was evicted."""
        return all(self.pool.find(tail.key(kind)) == page for kind, page in tail.pages.items())

    def _drop(self, tail: PageTail) -> None:
        for kind in tail.pages:
            self.pool.forget(tail.key(kind))
        self._remove(tail)

    def _drop_evicted(self) -> None:
        kept = [tail for branches in self._branches.values() for tail in branches]
        for tail in kept:
            if not self._is_whole(tail):
                self._drop(tail)

    def _remove(self, tail: PageTail) -> None:
        branches = self._branches[tail.before]
        branches.remove(tail)
        self._num_kept -= 1
        if not branches:
            del self._branches[tail.before]
