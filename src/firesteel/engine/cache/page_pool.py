"""The pool of page numbers: holders of each page, its content, and the order of eviction.

A page is free, held by one or more holders, or idle: held by none, but with content that may be requested again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class PagePool:
    """Page numbers from 0 to `num_pages` - 1 and their holders."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_evictions = 0
        self.holders = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))  # taken from the end
        self._idle: OrderedDict[int, None] = OrderedDict()  # longest idle first
        self._key_of: dict[int, Hashable] = {}
        self._page_of: dict[Hashable, int] = {}

    @property
    def num_available(self) -> int:
        """The number of pages that `take` can return."""
        return len(self._free) + len(self._idle)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def num_held(self) -> int:
        return self.num_pages - self.num_available

    def take(self) -> int:
        """Returns a page for new content, held once: a free page, else the longest idle one."""
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            del self._page_of[self._key_of.pop(page)]
            self.num_evictions += 1
        self.holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Adds a holder to a page that `find` returned."""
        self._idle.pop(page, None)
        self.holders[page] += 1

    def release(self, page: int) -> None:
        """Removes a holder; without holders, a page with known content is idle and any other is free."""
        self.holders[page] -= 1
        if self.holders[page]:
            return
        if page in self._key_of:
            self._idle[page] = None
        else:
            self._free.append(page)

    def remember(self, page: int, key: Hashable) -> None:
        """Records that `page` holds the content named by `key`, unless another page holds it already."""
        if key not in self._page_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def forget(self, key: Hashable) -> None:
        """Makes `find` return no page for `key`."""
        page = self._page_of.pop(key, None)
        if page is None:
            return
        del self._key_of[page]
        if page in self._idle:
            del self._idle[page]
            self._free.append(page)

    def find(self, key: Hashable) -> int | None:
        """Returns the page that holds the content named by `key`, or None."""
        return self._page_of.get(key)
