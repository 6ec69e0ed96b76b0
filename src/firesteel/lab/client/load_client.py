"""Asynchronous client: sends concurrent requests and records when each chunk arrives.

A failed stream is reported in its `Exchange`; other failed requests raise. `api.py` is the synchronous client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any

import httpx2

from firesteel.lab.client import wire
from firesteel.lab.client.exchange import Exchange, StreamReader
from firesteel.lab.client.wire import RequestFailed

ChatMessage = Mapping[str, Any]
CHAT = "/v1/chat/completions"
LATENCY_SAMPLES = 20
UNKNOWN_FIELD = (400, 422)  # status of a request with a field that the server does not accept
RESEND_WITHIN_S = 1.0  # of the first try: a server that closes a connection later may have begun to compute
CLOSED = "disconnected without sending a response"  # httpx2's words; a broken answer has others


class LoadClient:
    """`timeout_s` limits the silence between two reads. Connections are reused: no figure includes opening one."""

    def __init__(self, url: str, *, model: str = "", api_key: str = "", timeout_s: float = 600.0) -> None:
        self.url = wire.find_root(url)
        self.model = model
        self.timeout_s = timeout_s
        self.asks_ids = True  # requests token ids in streams
        self._http = httpx2.AsyncClient(
            headers=wire.headers(api_key),
            timeout=wire.timeouts(timeout_s),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,  # a proxy would be measured too
        )

    async def __aenter__(self) -> LoadClient:
        if not self.model:
            self.model, _ = await self.find_model()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def find_model(self) -> tuple[str, int | None]:
        """Returns the name and context length of the served model."""
        return wire.read_models(await self.get("/v1/models"), self.url)

    async def get(self, path: str) -> Any:
        return await self._ask("GET", path)

    async def chat(self, messages: Sequence[ChatMessage], *, max_tokens: int, **fields: Any) -> Any:
        """Returns a complete answer, not streamed, as parsed JSON."""
        return await self._ask("POST", CHAT, self._body(messages, max_tokens, fields))

    async def command(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        """Posts a request whose answer says nothing but that it was obeyed, in JSON or not."""
        await self._send("POST", path, body)

    async def stream(
        self, messages: Sequence[ChatMessage], *, max_tokens: int, leave_after: int | None = None, **fields: Any
    ) -> Exchange:
        """Streams an answer; after `leave_after` tokens the client disconnects, as a user who goes away."""
        return await self._listen(self._streamed(messages, max_tokens, fields), leave_after)

    async def stream_telling(
        self, messages: Sequence[ChatMessage], on_token: Callable[[], None], *, max_tokens: int, **fields: Any
    ) -> Exchange:
        """Streams an answer, and calls `on_token` whenever tokens have come."""
        return await self._listen(self._streamed(messages, max_tokens, fields), None, on_token)

    async def open_stream(self) -> Exchange:
        """Opens the connection, and finds out whether the server accepts `return_token_ids`.

        SGLang refuses streams with it; tokens are then counted by usage.
        """
        hello = [{"role": "user", "content": "hello"}]
        exchange = await self.stream(hello, max_tokens=1)
        if exchange.status in UNKNOWN_FIELD:
            self.asks_ids = False
            exchange = await self.stream(hello, max_tokens=1)
            self.asks_ids = not exchange.is_whole
        return exchange

    async def latency_s(self) -> float:
        """Returns the seconds of GET /v1/models, the shortest request there is.

        It is the least of many: whatever delays a request is not the connection, and would be subtracted from the
        times of prompts that were not delayed.
        """
        times_s = []
        for _ in range(LATENCY_SAMPLES):
            start = time.perf_counter()
            await self.get("/v1/models")
            times_s.append(time.perf_counter() - start)
        return min(times_s)

    def _body(self, messages: Sequence[ChatMessage], max_tokens: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "messages": list(messages), "max_tokens": max_tokens, **fields}

    def _streamed(
        self, messages: Sequence[ChatMessage], max_tokens: int, fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        asked = {**fields, "stream": True, "stream_options": {"include_usage": True}}
        if self.asks_ids:
            asked["return_token_ids"] = True
        return self._body(messages, max_tokens, asked)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return wire.parse(await self._send(method, path, body))

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        try:
            async with aclosing(await self._start(method, path, body)) as response:
                content = await response.aread()
        except (httpx2.HTTPError, OSError) as error:
            raise wire.explain(error, path, self.timeout_s) from error
        if not response.is_success:
            raise wire.refuse(response.status_code, content, path)
        return content

    async def _start(
        self, method: str, path: str, body: Mapping[str, Any] | None, on_start: Callable[[], None] = lambda: None
    ) -> httpx2.Response:
        """Sends a request and returns the answer as soon as it begins; the caller closes it.

        A kept connection may be closed by the server just as it is used; llama-server does so after some streams.
        The request is then sent again, until a new connection was opened for it, but only if nothing came back and
        the connection was closed at once. `on_start` is called before each try.
        """
        first_start_s = time.perf_counter()
        while True:
            opened: list[str] = []

            async def note(event: str, _: Mapping[str, Any], opened: list[str] = opened) -> None:
                if event.startswith("connection.connect_tcp."):
                    opened.append(event)

            request = self._http.build_request(method, self.url + path, json=body, extensions={"trace": note})
            on_start()
            try:
                return await self._http.send(request, stream=True)
            except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError) as error:
                is_broken = isinstance(error, httpx2.RemoteProtocolError) and CLOSED not in str(error)
                if opened or is_broken or time.perf_counter() - first_start_s > RESEND_WITHIN_S:
                    raise

    async def _listen(
        self, body: Mapping[str, Any], leave_after: int | None, on_token: Callable[[], None] | None = None
    ) -> Exchange:
        reader, status, failed = StreamReader(start_s=time.perf_counter()), None, None

        def begin() -> None:
            reader.start_s = time.perf_counter()

        try:
            async with aclosing(await self._start("POST", CHAT, body, begin)) as response:
                status = response.status_code
                if not response.is_success:
                    raise wire.refuse(status, await response.aread(), CHAT)
                await self._follow(response, reader, leave_after, on_token)
        except RequestFailed as error:
            failed = error
        except (httpx2.HTTPError, OSError) as error:
            failed = wire.explain(error, CHAT, self.timeout_s)
        words, kind = ("", "") if failed is None else (str(failed), failed.kind)
        return reader.finish(time.perf_counter(), status=status, error=words, error_kind=kind)

    async def _follow(
        self,
        response: httpx2.Response,
        reader: StreamReader,
        leave_after: int | None,
        on_token: Callable[[], None] | None,
    ) -> None:
        """Reads until the end or until the client leaves. SSE comments (keep-alive) count as silence."""
        rest, last_event_s = b"", time.perf_counter()
        async for data in response.aiter_bytes():
            now = time.perf_counter()
            *lines, rest = (rest + data).split(b"\n")
            has_event = [_read_line(line, reader, now) for line in lines]
            if any(has_event):
                last_event_s = now
            elif now - last_event_s > self.timeout_s:
                raise wire.silence(CHAT, self.timeout_s)
            if on_token is not None and reader.num_tokens:
                on_token()
            if leave_after is not None and reader.num_tokens >= leave_after:
                return
        if not reader.is_done:
            raise RequestFailed("garbage", "the answer ended in the middle: no [DONE]")


def _read_line(line: bytes, reader: StreamReader, now: float) -> bool:
    """Returns True if the line holds an event."""
    event = wire.read_event(line)
    if event is wire.DONE:
        reader.is_done = True
    elif event is not None:
        try:
            reader.add(event, now)
        except (AttributeError, TypeError, KeyError) as error:
            raise RequestFailed("garbage", f"the stream holds an invalid chunk: {line[: wire.SHOWN]!r}") from error
    return event is not None
