"""Answers that end when their client leaves: one of JSON, or a stream of server-sent events; knows no endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from firesteel.config import ServerConfig
from firesteel.errors import EngineDied, UserError
from firesteel.server.errors import ApiError, ClientGone, as_api_error, note_error

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


@asynccontextmanager
async def until_gone(receive: Receive) -> AsyncIterator[None]:
    """Ends its body with ClientGone when the client closes its connection."""
    task = asyncio.current_task()
    assert task is not None
    is_gone = False

    async def watch() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if is_gone and task.uncancel() == 0:
            raise ClientGone from None
        raise
    finally:
        watcher.cancel()


class Computed(Response):
    """An answer that is made while its client waits."""

    def __init__(self, make: Callable[[], Awaitable[Response]], config: ServerConfig) -> None:
        self._make = make
        self.config = config
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with until_gone(receive), asyncio.timeout(self.config.request_timeout_s or None):
            response = await self._make()
        await response(scope, receive, send)


class EventStream(Response):
    """Events as they come. An error before the first is an HTTP error, a later one is an event."""

    def __init__(self, events: AsyncGenerator[bytes, None], config: ServerConfig) -> None:
        self._events = events
        self.config = config
        self._has_begun = False
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with until_gone(receive), asyncio.timeout(self.config.request_timeout_s or None):
                await self._pass_on(send)
        except (ApiError, UserError, EngineDied, TimeoutError, ClientGone) as error:
            if not self._has_begun:
                raise
            note_error(scope, error)
            if isinstance(error, ClientGone):
                return
            await self._send(send, event(as_api_error(error).body))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass_on(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for data in events:
                if not self._has_begun:
                    self._has_begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                await self._send(send, data)

    async def _send(self, send: Send, data: bytes) -> None:
        """Waits while the client is slow to read, but not for ever."""
        try:
            async with asyncio.timeout(self.config.slow_client_s or None):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise SlowClient from None


class SlowClient(ClientGone):
    """The client is there but does not read."""
