"""Page tables of requests: pages are found by prefix, added and released.

A page number holds tokens of full layers or of window layers. Both tables of a request are indexed by position; a
window table releases pages that no later token attends to. A text is found by its filled pages, which requests
share, and by what its last page holds (`page_tails.py`), which one request takes over.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field

from firesteel.engine.cache.page_pool import PagePool
from firesteel.engine.cache.page_tails import PageTail, PageTails

FULL, WINDOW = "full", "window"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLayout:
    """Layout of a text in pages."""

    page_size: int
    kinds: tuple[str, ...]  # kinds of layers in the model, full first
    window: int = 0  # tokens that window layers see, the token itself included

    def first_seen(self, position: int) -> int:
        """Returns the first position in the window of the token at `position`."""
        return max(0, position - self.window + 1)

    def count_pages(self, num_tokens: int, chunk: int = 1, held: int = 0) -> int:
        """Returns the most pages that `num_tokens`, computed `chunk` at a time, need beyond `held` of each kind."""
        whole = max(0, -(-num_tokens // self.page_size) - held)
        seen = -(-(self.window + chunk - 2) // self.page_size) + 1  # the span may begin at the end of a page
        return (FULL in self.kinds) * whole + (WINDOW in self.kinds) * min(whole, seen)

    def count_tokens(self, num_pages: int) -> int:
        """Returns the most tokens that a text can have in `num_pages`; its last token is not stored."""
        counts = range(num_pages + 1)
        whole = bisect_right(counts, num_pages, key=lambda count: self.count_pages(count * self.page_size)) - 1
        return whole * self.page_size + 1


@dataclass(slots=True, eq=False)
class PageTable:
    """Pages of one request. Tokens may be appended; digests stay valid after pages are released."""

    token_ids: list[int]
    root: bytes = b""  # what the chain of digests begins with
    is_shared: bool = True  # other requests can find its filled pages
    pages: dict[str, array[int]] = field(default_factory=dict)  # by kind
    num_pages: int = 0  # of each kind
    num_released: int = 0  # first pages of the window table that are no longer held
    num_remembered: int = 0  # first pages that other requests can find
    num_stored: int = 0  # first tokens whose keys and values are in the pages
    taken: PageTail | None = None  # the tail that it began with, until a token of its own may be written behind it
    digests: list[bytes] = field(default_factory=list)  # of the first whole pages of tokens


class PageTables:
    """Operations on the page tables of all requests, which share a pool."""

    def __init__(self, pool: PagePool, layout: PageLayout, *, prefix_caching: bool = True) -> None:
        self.pool = pool
        self.tails = PageTails(pool)
        self.layout = layout
        self.prefix_caching = prefix_caching
        self.page_size, self.kinds = layout.page_size, layout.kinds

    def new(self, token_ids: list[int], *, salt: str = "", is_shared: bool = True) -> PageTable:
        """Creates a table. Only tables of equal `salt` find each other's pages, and only if those are shared."""
        pages = {kind: array("q") for kind in self.kinds}
        return PageTable(token_ids, root_of(salt), is_shared and self.prefix_caching, pages)

    def open(self, table: PageTable, most: int) -> int:
        """Holds the longest cached prefix of at most `most` tokens; returns its number of tokens."""
        count = self._count_cached(table, most // self.page_size) if self.prefix_caching else 0
        first = {FULL: 0, WINDOW: self.layout.first_seen(count * self.page_size) // self.page_size}
        for kind in self.kinds:
            pages = [self._find(table, kind, number) for number in range(first[kind], count)]
            for page in pages:
                self.pool.hold(page)
            table.pages[kind] = array("q", [0] * first[kind] + pages)
        table.num_pages = table.num_remembered = count
        table.num_released = first[WINDOW]
        table.num_stored = count * self.page_size
        if self.prefix_caching and most > table.num_stored:
            self._take_tail(table, most)
        return table.num_stored

    def _take_tail(self, table: PageTable, most: int) -> None:
        """Takes over the page that continues the filled ones with the same tokens, if there is one."""
        following = table.token_ids[table.num_stored : min(most, table.num_stored + self.page_size)]
        found = self.tails.find(self._digest_before(table, table.num_pages), following)
        if found is None:
            return
        table.taken, count = found
        self.tails.take(table.taken)
        for kind in self.kinds:
            table.pages[kind].append(table.taken.pages[kind])
        table.num_pages += 1
        table.num_stored += count

    def count_missing(self, table: PageTable, end: int) -> int:
        """Returns the number of pages to take for tokens up to `end`."""
        return len(self.kinds) * max(0, -(-end // self.page_size) - table.num_pages)

    def grow(self, table: PageTable, end: int) -> int:
        """Adds pages for tokens up to `end`, or as many as are available; returns the end of what they hold."""
        table.taken = None
        wanted = -(-end // self.page_size) - table.num_pages
        for _ in range(min(wanted, self.pool.num_available // len(self.kinds))):
            for kind in self.kinds:
                table.pages[kind].append(self.pool.take())
            table.num_pages += 1
        return min(end, table.num_pages * self.page_size)

    def shrink(self, table: PageTable, end: int) -> None:
        """Releases the pages after those of tokens up to `end`, in which nothing is stored that anybody wants."""
        kept = -(-end // self.page_size)
        for _ in range(kept, table.num_pages):
            for kind in self.kinds:
                self.pool.release(table.pages[kind].pop())
        table.num_pages = min(table.num_pages, kept)

    def advance(self, table: PageTable, num_computed: int) -> None:
        """Records that tokens up to `num_computed` are stored.

        Other requests can then find the filled pages; pages before the window are released.
        """
        table.num_stored = num_computed
        if table.is_shared:
            for number in range(table.num_remembered, num_computed // self.page_size):
                for kind in self.kinds:
                    self.pool.remember(table.pages[kind][number], (kind, self._digest(table, number)))
                table.num_remembered = number + 1
        if WINDOW in self.kinds:
            first = self.layout.first_seen(num_computed) // self.page_size
            for number in range(table.num_released, first):
                self.pool.release(table.pages[WINDOW][number])
            table.num_released = max(table.num_released, first)

    def forget(self, table: PageTable) -> None:
        """Makes the content of the pages unfindable, because it may be wrong; holders keep their pages."""
        table.is_shared = False
        for number in range(table.num_remembered):
            for kind in self.kinds:
                self.pool.forget((kind, self._digest(table, number)))

    def close(self, table: PageTable) -> None:
        """Releases all pages, the last first, so that the beginning of the text stays cached longest."""
        self._keep_tail(table)
        for number in range(table.num_pages - 1, -1, -1):
            for kind in self.kinds:
                if kind == FULL or number >= table.num_released:
                    self.pool.release(table.pages[kind][number])
        table.pages = {kind: array("q") for kind in self.kinds}
        table.num_pages = table.num_released = table.num_remembered = table.num_stored = 0
        table.taken = None

    def _keep_tail(self, table: PageTable) -> None:
        """Lets a later request take over the last page, if tokens are stored in a part of it."""
        number, count = divmod(table.num_stored, self.page_size)
        if not (table.is_shared and count):
            return
        start = number * self.page_size
        stored = table.token_ids[start : start + count] if table.taken is None else table.taken.token_ids
        pages = {kind: table.pages[kind][number] for kind in self.kinds}
        self.tails.keep(self._digest_before(table, number), stored, pages)

    def _count_cached(self, table: PageTable, most: int) -> int:
        """Returns the pages of the longest prefix whose full pages and last window pages are all cached."""
        best = run = 0  # run: consecutive cached window pages up to this one
        for number in range(most):
            if FULL in self.kinds and self.pool.find((FULL, self._digest(table, number))) is None:
                break
            if WINDOW in self.kinds:
                is_cached = self.pool.find((WINDOW, self._digest(table, number))) is not None
                run = run + 1 if is_cached else 0
                if run < number + 1 - self.layout.first_seen((number + 1) * self.page_size) // self.page_size:
                    continue
            best = number + 1
        return best

    def _find(self, table: PageTable, kind: str, number: int) -> int:
        page = self.pool.find((kind, self._digest(table, number)))
        assert page is not None
        return page

    def _digest_before(self, table: PageTable, number: int) -> bytes:
        """Returns the digest of all tokens before page `number`."""
        return self._digest(table, number - 1) if number else table.root

    def _digest(self, table: PageTable, number: int) -> bytes:
        """Returns the digest of all tokens up to the end of page `number`, chained from page to page."""
        while len(table.digests) <= number:
            start = len(table.digests) * self.page_size
            tokens = array("q", table.token_ids[start : start + self.page_size]).tobytes()
            before = table.digests[-1] if table.digests else table.root
            table.digests.append(hashlib.blake2b(before + tokens, digest_size=16).digest())
        return table.digests[number]


def root_of(salt: str) -> bytes:
    """Returns the start of a chain of digests. Its size differs from theirs, so no salt continues another chain."""
    return hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=32).digest() if salt else b""
