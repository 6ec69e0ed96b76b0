"""An asynchronous client of OpenAI-compatible servers that notes when everything came; knows no benchmark.

What a server does wrong is found in the `Exchange`; only an address that cannot be asked at all is an error here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx2

from firesteel.errors import UserError
from firesteel.lab.exchange import Exchange, Listener

Message = Mapping[str, Any]
CONNECT_S = 10.0
SHOWN = 300  # characters of an answer that is quoted in an error


class ServerError(UserError):
    """A server that cannot be asked, or answers what no OpenAI-compatible server answers."""


class Client:
    """`url` ends in /v1, or is a bare host that gets it. `timeout_s` bounds the silence between two reads."""

    def __init__(self, url: str, *, model: str = "", api_key: str = "", timeout_s: float = 600.0) -> None:
        self.url = complete_url(url)
        self.model = model
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {api_key or 'EMPTY'}"},
            timeout=httpx2.Timeout(CONNECT_S, read=timeout_s, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,  # a proxy would be measured too
        )

    async def __aenter__(self) -> Client:
        if not self.model:
            self.model = await self.find_model()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def find_model(self) -> str:
        """The one that is served."""
        content = await self.get("/models")
        try:
            names = [str(one["id"]) for one in content["data"]]
        except (KeyError, TypeError) as error:
            raise ServerError(f"{self.url}/models is no list of models: {content!r:.{SHOWN}}") from error
        if not names:
            raise ServerError(f"{self.url} serves no model")
        return names[0]

    async def get(self, path: str) -> Any:
        return _content(await self._ask("GET", path))

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return _content(await self._ask("POST", path, body))

    async def chat(self, messages: Sequence[Message], *, max_tokens: int, **fields: Any) -> Any:
        """A whole answer, not streamed, as the server wrote it."""
        return await self.post("/chat/completions", self._body(messages, max_tokens, fields))

    async def stream(
        self, messages: Sequence[Message], *, max_tokens: int, leave_after: int | None = None, **fields: Any
    ) -> Exchange:
        """A streamed answer. `leave_after` tokens the client closes the connection, as a user who goes away."""
        asked = {**fields, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        return await self._listen("/chat/completions", self._body(messages, max_tokens, asked), leave_after)

    async def latency_s(self, count: int = 3) -> float:
        """Of the shortest question there is: mean seconds of GET /models."""
        start = time.perf_counter()
        for _ in range(count):
            await self.get("/models")
        return (time.perf_counter() - start) / count

    def _body(self, messages: Sequence[Message], max_tokens: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "messages": list(messages), "max_tokens": max_tokens, **fields}

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx2.Response:
        try:
            response = await self._http.request(method, self.url + path, json=body)
        except (httpx2.HTTPError, OSError) as error:
            raise ServerError(f"{self.url}{path}: {_words(error)}") from error
        if not response.is_success:
            raise ServerError(f"{self.url}{path} answers {response.status_code}: {response.text:.{SHOWN}}")
        return response

    async def _listen(self, path: str, body: Mapping[str, Any], leave_after: int | None) -> Exchange:
        listener, status, error = Listener(start_s=time.perf_counter()), None, ""
        try:
            async with self._http.stream("POST", self.url + path, json=body) as response:
                status = response.status_code
                if response.is_success:
                    error = await _follow(response, listener, leave_after)
                else:
                    text = (await response.aread()).decode("utf-8", "replace")
                    error = f"HTTP {status}: {text:.{SHOWN}}"
        except (httpx2.HTTPError, OSError) as caught:
            error = _words(caught)
        return listener.finish(time.perf_counter(), status=status, error=error)


async def _follow(response: httpx2.Response, listener: Listener, leave_after: int | None) -> str:
    """Until the end; what is wrong with the stream in words, empty if nothing is."""
    rest = b""
    async for data in response.aiter_bytes():
        now = time.perf_counter()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if error := _hear_line(line, listener, now):
                return error
        if leave_after is not None and listener.num_tokens >= leave_after:
            return ""
    return "" if listener.is_done else "the answer ended in the middle: no [DONE]"


def _hear_line(line: bytes, listener: Listener, now: float) -> str:
    if not line.startswith(b"data:"):
        return ""
    data = line[len(b"data:") :].strip()
    if data == b"[DONE]":
        listener.is_done = True
        return ""
    try:
        chunk = json.loads(data)
    except ValueError:
        return f"the stream holds what is no JSON: {data[:SHOWN]!r}"
    try:
        listener.hear(chunk, now)
    except (AttributeError, TypeError, KeyError):
        return f"the stream holds what is no chunk: {data[:SHOWN]!r}"
    return ""


def complete_url(url: str) -> str:
    """The address that paths are added to: a bare host gets a scheme and /v1."""
    whole = url if "://" in url else f"http://{url}"
    try:
        parsed = httpx2.URL(whole)
    except httpx2.InvalidURL as error:
        raise ServerError(f"{url} is no address: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ServerError(f"{url}: wants an address like http://127.0.0.1:8000/v1")
    return f"{whole.rstrip('/')}/v1" if parsed.path in ("", "/") else whole.rstrip("/")


def _content(response: httpx2.Response) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise ServerError(f"{response.url} answers what is no JSON: {response.text:.{SHOWN}}") from error


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
