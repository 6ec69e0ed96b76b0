"""Asks a server many things at once and notes when every piece came; knows no benchmark.

What goes wrong in a stream is found in its `Exchange`; other questions that fail raise. `api.py` asks and waits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx2

from firesteel.lab.client import wire
from firesteel.lab.client.exchange import Exchange, Listener
from firesteel.lab.client.wire import RequestFailed

Message = Mapping[str, Any]
CHAT = "/v1/chat/completions"
NOT_TAKEN = (400, 422)  # status of a request with a field that a server does not take


class Client:
    """`timeout_s` bounds the silence between two reads. Connections are kept: no figure pays for opening one."""

    def __init__(self, url: str, *, model: str = "", api_key: str = "", timeout_s: float = 600.0) -> None:
        self.url = wire.find_root(url)
        self.model = model
        self.timeout_s = timeout_s
        self.asks_ids = True  # of tokens, in a stream
        self._http = httpx2.AsyncClient(
            headers=wire.headers(api_key), timeout=wire.timeouts(timeout_s),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,  # a proxy would be measured too
        )  # fmt: skip

    async def __aenter__(self) -> Client:
        if not self.model:
            self.model, _ = await self.find_model()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def find_model(self) -> tuple[str, int | None]:
        """Name and context of the one that is served."""
        return wire.read_models(await self.get("/v1/models"), self.url)

    async def get(self, path: str) -> Any:
        return await self._ask("GET", path)

    async def chat(self, messages: Sequence[Message], *, max_tokens: int, **fields: Any) -> Any:
        """A whole answer, not streamed, as the server wrote it."""
        return await self._ask("POST", CHAT, self._body(messages, max_tokens, fields))

    async def stream(
        self, messages: Sequence[Message], *, max_tokens: int, leave_after: int | None = None, **fields: Any
    ) -> Exchange:
        """A streamed answer. `leave_after` tokens the client closes the connection, as a user who goes away."""
        asked = {**fields, "stream": True, "stream_options": {"include_usage": True}}
        if self.asks_ids:
            asked["return_token_ids"] = True
        return await self._listen(CHAT, self._body(messages, max_tokens, asked), leave_after)

    async def open_stream(self) -> Exchange:
        """The first stream pays for the connection and tells whether ids of tokens may be asked for.

        SGLang refuses a stream with them: it is not asked for them again, and usage counts its tokens.
        """
        hello = [{"role": "user", "content": "hello"}]
        found = await self.stream(hello, max_tokens=1)
        if found.status in NOT_TAKEN:
            self.asks_ids = False
            found = await self.stream(hello, max_tokens=1)
            self.asks_ids = not found.is_whole
        return found

    async def latency_s(self, count: int = 3) -> float:
        """Of the shortest question there is: mean seconds of GET /v1/models."""
        start = time.perf_counter()
        for _ in range(count):
            await self.get("/v1/models")
        return (time.perf_counter() - start) / count

    def _body(self, messages: Sequence[Message], max_tokens: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "messages": list(messages), "max_tokens": max_tokens, **fields}

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            response = await self._http.request(method, self.url + path, json=body)
        except (httpx2.HTTPError, OSError) as error:
            raise wire.explain(error, path, self.timeout_s) from error
        if not response.is_success:
            raise wire.refuse(response.status_code, response.content, path)
        return wire.parse(response.content)

    async def _listen(self, path: str, body: Mapping[str, Any], leave_after: int | None) -> Exchange:
        listener, status, failed = Listener(start_s=time.perf_counter()), None, None
        try:
            async with self._http.stream("POST", self.url + path, json=body) as response:
                status = response.status_code
                if not response.is_success:
                    raise wire.refuse(status, await response.aread(), path)
                await self._follow(response, listener, leave_after)
        except RequestFailed as error:
            failed = error
        except (httpx2.HTTPError, OSError) as error:
            failed = wire.explain(error, path, self.timeout_s)
        words, kind = ("", "") if failed is None else (str(failed), failed.kind)
        return listener.finish(time.perf_counter(), status=status, error=words, error_kind=kind)

    async def _follow(self, response: httpx2.Response, listener: Listener, leave_after: int | None) -> None:
        """Until the end, or until the client leaves. Comments that only keep a connection open are silence too."""
        rest, heard_s = b"", time.perf_counter()
        async for data in response.aiter_bytes():
            now = time.perf_counter()
            *lines, rest = (rest + data).split(b"\n")
            said = [_hear_line(line, listener, now) for line in lines]
            if any(said):
                heard_s = now
            elif now - heard_s > self.timeout_s:
                raise wire.silence(CHAT, self.timeout_s)
            if leave_after is not None and listener.num_tokens >= leave_after:
                return
        if not listener.is_done:
            raise RequestFailed("garbage", "the answer ended in the middle: no [DONE]")


def _hear_line(line: bytes, listener: Listener, now: float) -> bool:
    """Whether it said something."""
    event = wire.read_event(line)
    if event is wire.DONE:
        listener.is_done = True
    elif event is not None:
        try:
            listener.hear(event, now)
        except (AttributeError, TypeError, KeyError) as error:
            raise RequestFailed("garbage", f"the stream holds what is no chunk: {line[: wire.SHOWN]!r}") from error
    return event is not None
