"""Answers that are cancelled when their client leaves: one JSON object, or a stream of server-sent events."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from firesteel.config import ServerConfig
from firesteel.server.http.errors import (
    ApiError,
    ClientGone,
    as_api_error,
    log_fault,
    note_error,
    panics_as_faults,
    shape_of,
)

LONG_S = 3600.0
DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx passes each event on at once
]
_encode = msgspec.json.Encoder().encode


def event(value: msgspec.Struct, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return b"%sdata: %s\n\n" % (head, _encode(value))


def error_event(error: ApiError, scope: Scope) -> bytes:
    """Returns the event that ends a stream with an error."""
    shape = shape_of(scope)
    return event(shape.spell(error, scope), shape.event)


@asynccontextmanager
async def unless(happens: Callable[[], Awaitable[None]], error: type[Exception]) -> AsyncIterator[None]:
    """Cancels its body and raises `error` once `happens` returns."""
    task = asyncio.current_task()
    assert task is not None
    has_happened = False

    async def watch() -> None:
        nonlocal has_happened
        await happens()
        has_happened = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if has_happened and task.uncancel() == 0:
            raise error from None
        raise
    finally:
        watcher.cancel()


async def client_leaves(receive: Receive) -> None:
    """Returns when the client closes its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def while_client_waits(receive: Receive) -> AbstractAsyncContextManager[None]:
    """Returns a context that cancels its body and raises ClientGone if the client leaves."""
    return unless(partial(client_leaves, receive), ClientGone)


class Computed(Response):
    """An answer that is computed while its client waits."""

    def __init__(self, make: Callable[[], Awaitable[Response]], config: ServerConfig) -> None:
        self._make = make
        self.config = config
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit_s = self.config.request_timeout_s or None
        async with while_client_waits(receive), asyncio.timeout(limit_s):
            response = await self._make()
        await response(scope, receive, send)


class EventStream(Response):
    """Sends events as they come. An error before the first is an HTTP error, a later one is an event."""

    def __init__(self, events: AsyncGenerator[bytes, None], config: ServerConfig) -> None:
        self._events = events
        self.config = config
        self._has_begun = False
        self._sending_since: float | None = None
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with (
                while_client_waits(receive),
                unless(self._is_stuck, SlowClient),
                asyncio.timeout(self.config.request_timeout_s or None),
            ):
                with panics_as_faults():
                    await self._pass_on(send)
        except Exception as error:
            if not self._has_begun:
                raise
            note_error(scope, error)
            if isinstance(error, ClientGone):
                return
            log_fault(error)
            last = error_event(as_api_error(error), scope)
            await send({"type": "http.response.body", "body": last, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass_on(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for data in events:
                await self._begin(send)
                self._sending_since = asyncio.get_running_loop().time()
                await send({"type": "http.response.body", "body": data, "more_body": True})
                self._sending_since = None
        await self._begin(send)

    async def _begin(self, send: Send) -> None:
        """Sends the status before the first event, or at the end of a stream without events."""
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})

    async def _is_stuck(self) -> None:
        """Returns once an event could not be sent for too long: the client does not read."""
        limit_s, clock = self.config.slow_client_s or math.inf, asyncio.get_running_loop().time
        while self._sending_since is None or clock() - self._sending_since < limit_s:
            await asyncio.sleep(min(limit_s / 4, LONG_S))


class SlowClient(ClientGone):
    """The client is there but does not read."""
