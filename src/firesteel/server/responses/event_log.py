"""Events of a background response, kept so that clients can follow it and resume after a broken connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from firesteel.server.http.sse import event
from firesteel.server.responses.answers import Event


class EventLog:
    """All events so far, encoded; the place of an event is its sequence number."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._events: list[bytes] = []
        self._is_closed = False
        self._news = asyncio.Event()  # replaced after each change, so that every follower sees it

    def add(self, events: Sequence[Event]) -> None:
        for new in events:
            self._events.append(event(new, new.type))
            self.num_bytes += len(self._events[-1])
        self._announce()

    def close(self) -> None:
        """Ends the streams of all followers once they have read all events."""
        self._is_closed = True
        self._announce()

    async def follow(self, begin: int = 0) -> AsyncGenerator[bytes, None]:
        """Yields the events from number `begin` on, waiting for those to come."""
        place = begin
        while True:
            news = self._news
            while place < len(self._events):
                yield self._events[place]
                place += 1
            if self._is_closed:
                return
            if news is self._news:
                await news.wait()

    def _announce(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
