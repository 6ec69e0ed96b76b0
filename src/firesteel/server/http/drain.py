"""Ends the requests that outlast the time that a stopping server gives them, so that every client is told.

Answers that are being generated fail first, as if the engine had failed: each endpoint reports that in its own
form. Whatever is left after that (a body that still arrives, a client that does not read) is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from firesteel.server.http.errors import RETRY_S, ApiError, note_error
from firesteel.server.http.sse import HEADERS, error_event

TELL_S = 1.0  # to send errors to clients, and again to those whose requests had to be cancelled
Fail = Callable[[Exception], None]


def stopped() -> ApiError:
    return ApiError(
        503,
        "the server stopped before the answer was complete; the request may be sent again",
        code="stopping",
        retry_s=RETRY_S,
    )


class Drain:
    """The requests under way, and their end."""

    def __init__(self) -> None:
        self._generating: set[Fail] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cancelled: set[asyncio.Task[Any]] = set()

    @contextmanager
    def generating(self, fail: Fail) -> Iterator[None]:
        """Calls `fail` with an error if the drain ends while the body runs."""
        self._generating.add(fail)
        try:
            yield
        finally:
            self._generating.discard(fail)

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """Cancels the current task, with an ApiError, if its body still runs when the drain has ended."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task in self._cancelled and task.uncancel() == 0:
                raise stopped() from None
            raise
        finally:
            self._tasks.discard(task)
            self._cancelled.discard(task)

    async def end(self) -> None:
        """Fails all requests under way. Returns when those that did not end by themselves were cancelled."""
        for fail in tuple(self._generating):
            fail(stopped())
        await asyncio.sleep(TELL_S)
        for task in tuple(self._tasks):
            self._cancelled.add(task)
            task.cancel()


class DrainGuard:
    """Answers requests that the end of the drain cancels: 503, or an event if a stream has begun."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self.app = app
        self.drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started: list[Message] = []

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.append(message)
            await send(message)

        try:
            with self.drain.cancelling():
                await self.app(scope, receive, send_and_note)
        except ApiError as error:
            note_error(scope, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(TELL_S):
                    if not started:
                        await error.response(scope)(scope, receive, send)
                    elif HEADERS[0] in started[0]["headers"]:
                        body = error_event(error, scope)
                        await send({"type": "http.response.body", "body": body, "more_body": False})
