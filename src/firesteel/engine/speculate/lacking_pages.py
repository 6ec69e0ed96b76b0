"""Pages in which a draft network lacks keys and values: those of requests that are decoded without it."""

from __future__ import annotations

from firesteel.types import Span


class LackingPages:
    """Numbers of pages with a token that the network did not store."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._pages: set[int] = set()

    def note(self, span: Span, end: int, *, is_stored: bool) -> None:
        """Notes that tokens of the span up to `end` were written, by the network too if `is_stored`.

        A page whose first token is written anew holds nothing else.
        """
        size = self._page_size
        if is_stored:
            self._pages.difference_update(span.full_pages[-(-span.start // size) : -(-end // size)])
        else:
            self._pages.update(span.full_pages[span.start // size : -(-end // size)])

    def find_before(self, span: Span) -> list[int]:
        """Returns the numbers in the text, rising, of those that hold tokens before the span."""
        before = span.full_pages[: -(-span.start // self._page_size)]
        if self._pages.isdisjoint(before):
            return []
        return [number for number, page in enumerate(before) if page in self._pages]
