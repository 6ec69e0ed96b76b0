"""Pages by number: how often each is held, which content it keeps, which goes first; knows no tensors or requests.

A page is free, held by one or more, or idle: held by none, but its content may be asked for again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class PagePool:
    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_evictions = 0
        self.holders = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))  # the end is taken first
        self._idle: OrderedDict[int, None] = OrderedDict()  # longest idle first
        self._key_of: dict[int, Hashable] = {}
        self._page_of: dict[Hashable, int] = {}

    @property
    def num_available(self) -> int:
        """Pages that `take` can give."""
        return len(self._free) + len(self._idle)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def num_held(self) -> int:
        return self.num_pages - self.num_available

    def take(self) -> int:
        """A page for new content, held once: a free one, else the one idle for longest, which is forgotten."""
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            del self._page_of[self._key_of.pop(page)]
            self.num_evictions += 1
        self.holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One holder more of a page that `find` gave."""
        self._idle.pop(page, None)
        self.holders[page] += 1

    def release(self, page: int) -> None:
        self.holders[page] -= 1
        if self.holders[page]:
            return
        if page in self._key_of:
            self._idle[page] = None
        else:
            self._free.append(page)

    def remember(self, page: int, key: Hashable) -> None:
        """`page` holds what `key` names. Where another page does already, that one stays the one to find."""
        if key not in self._page_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def forget(self, key: Hashable) -> None:
        """The page that holds what `key` names is found no more, if there is one."""
        page = self._page_of.pop(key, None)
        if page is None:
            return
        del self._key_of[page]
        if page in self._idle:
            del self._idle[page]
            self._free.append(page)

    def find(self, key: Hashable) -> int | None:
        return self._page_of.get(key)
