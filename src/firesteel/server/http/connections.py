"""Connections of clients: how many, how long they may wait, and which one makes room for the next.

A connection without a request is idle: it was just opened, its headers have not all arrived, or its last answer was
sent. Idle connections are closed after a time, and earlier if there is no room for a new one, longest idle first.
So connections that ask for nothing cannot keep others out.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any, cast

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from firesteel.server.http.errors import ApiError

log = logging.getLogger(__name__)
HEADERS_TIMEOUT_S = 20.0  # from the connection, or the first byte of its next request, to the end of the headers
MAX_HEADERS = 16 << 10  # bytes
FREE_CHUNKS = 1024  # of a body; further ones must have CHUNK_BYTES on average
CHUNK_BYTES = 256
_END = re.compile(rb"\n\r?\n")
QUIET_S = 60.0  # between two warnings of the same kind


class RareWarning:
    """A warning that is logged at most once per QUIET_S: its cause may occur thousands of times per second."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._last: float | None = None

    def log(self, **facts: Any) -> None:
        now = time.monotonic()
        if self._last is None or now - self._last >= QUIET_S:
            self._last = now
            log.warning(self.text, extra=facts)


class ConnectionTable(ServerState):
    """All open connections, at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.idle: dict[Connection, None] = {}  # longest idle first
        self._refused = RareWarning("connections refused: all are busy")

    def admit(self) -> bool:
        """Makes room for a connection that was just added; returns whether it may stay."""
        if len(self.connections) <= self.limit or self.close_idle():
            return True
        self._refused.log(connections=self.limit)
        return False

    def close_idle(self) -> bool:
        """Closes the connection that is idle longest; returns whether there was one."""
        connection = next(iter(self.idle), None)
        if connection is None:
            return False
        del self.idle[connection]
        connection.transport.abort()
        return True


class Parser(h11.Connection):
    """A parser that refuses bodies in tiny chunks: their framing would keep the event loop busy for seconds."""

    _num_chunks = 0
    _num_bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._num_chunks = self._num_bytes = 0
        elif isinstance(event, h11.Data):
            self._num_chunks += 1
            self._num_bytes += len(event.data)
            if self._num_chunks > FREE_CHUNKS + self._num_bytes // CHUNK_BYTES:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return event


class Connection(H11Protocol):
    """A connection that is closed if the headers of a request take too long, or too much room.

    uvicorn limits the time between two requests, but neither that before the first nor that of the headers, and
    the room of headers only while they are incomplete.
    """

    _deadline: asyncio.TimerHandle | None = None  # of the headers

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = Parser(h11.SERVER, MAX_HEADERS)

    @property
    def table(self) -> ConnectionTable:
        return cast(ConnectionTable, self.server_state)

    @property
    def is_busy(self) -> bool:
        """True from the end of a request's headers to the end of its answer."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self.table.admit():
            transport.write(BUSY)
            transport.close()
            return
        self.table.idle[self] = None
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE and _find_end(data) > MAX_HEADERS:
            self.send_400_response("the headers are too large")
            return
        super().data_received(data)
        if self.is_busy:
            self.table.idle.pop(self, None)
            self._stop_deadline()
        elif self._deadline is None and not self.transport.is_closing():
            self._start_deadline()

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP, unless an answer was begun, and closes the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(INVALID)
        self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.is_busy and not self.transport.is_closing():
            self.table.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.table.idle.pop(self, None)
        self._stop_deadline()

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(HEADERS_TIMEOUT_S, self.transport.close)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _find_end(data: bytes) -> int:
    """Returns where the headers in `data` end."""
    end = _END.search(data)
    return len(data) if end is None else end.start()


def _spell(error: ApiError, title: str) -> bytes:
    """Returns the bytes of an answer that ends its connection."""
    body = msgspec.json.encode(error.body)
    head = [
        f"HTTP/1.1 {error.status} {title}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    if error.retry_s:
        head.append(f"retry-after: {error.retry_s}")
    return "\r\n".join([*head, "", ""]).encode() + body


BUSY = _spell(
    ApiError(503, "all connections are in use: try again later", code="overloaded", retry_s=1),
    "Service Unavailable",
)
INVALID = _spell(
    ApiError(
        400,
        f"this is not a valid HTTP request, its headers exceed {MAX_HEADERS >> 10} KiB, or the chunks of its body "
        f"have fewer than {CHUNK_BYTES} bytes",
        code="invalid_http",
    ),
    "Bad Request",
)
