"""Admission of requests: the limit on concurrent requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from firesteel.server.http.drain import Drain
from firesteel.server.http.errors import ApiError

BUSY_RETRY_S = 1


class Admission:
    """Counts unfinished requests, each choice as one."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_under_way = 0
        self.is_stopping = False
        self.drain = Drain()

    def check_count(self, count: int) -> None:
        if count > self.limit:
            raise ApiError(
                400, f"{count} choices exceed the {self.limit} requests that may be under way", param="n"
            )

    def check_room(self, count: int = 1) -> None:
        """Raises ApiError if `count` more requests cannot be admitted now."""
        if self.is_stopping:
            raise ApiError(503, "the server is stopping", code="stopping", retry_s=BUSY_RETRY_S)
        self.check_count(count)
        if self.num_under_way + count > self.limit:
            raise ApiError(
                429,
                f"{self.num_under_way} requests are under way; {self.limit} is the limit: try again later",
                code="overloaded",
                retry_s=BUSY_RETRY_S,
            )

    @contextmanager
    def admit(self, count: int = 1) -> Iterator[None]:
        self.check_room(count)
        self.num_under_way += count
        try:
            yield
        finally:
            self.num_under_way -= count
