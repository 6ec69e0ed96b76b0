"""Asks an OpenAI-compatible server and says in which way it failed to answer; measures nothing."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from firesteel.errors import UserError

SHOWN = 200  # characters of a wrong answer
Prompt = str | Sequence[int]


class RequestFailed(Exception):
    """One request that was not answered as it should be."""

    def __init__(self, kind: str, words: str, status: int | None = None) -> None:
        super().__init__(words)
        self.kind = kind  # "http-error", "garbage", "unreachable" or "silent"
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    url: str  # without /v1
    model: str = ""
    api_key: str = ""
    timeout_s: float = 600.0  # for a whole answer

    @classmethod
    def of(cls, url: str, api_key: str = "") -> Api:
        """As users write addresses: with or without http:// and /v1."""
        whole = url if "://" in url else f"http://{url}"
        parts = urlsplit(whole)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{url!r} is not an address of a server: write it as http://HOST:PORT")
        return cls(url=whole.rstrip("/").removesuffix("/v1").rstrip("/"), api_key=api_key)

    def get(self, path: str) -> Any:
        with self._ask("GET", path) as answer:
            return _parse(answer.read())

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        with self._ask("POST", path, body) as answer:
            return _parse(answer.read())

    def complete(self, prompt: Prompt, **fields: Any) -> dict[str, Any]:
        """Of a text or of tokens: the whole answer, with a choice that has a text."""
        body = {"model": self.model, "prompt": prompt if isinstance(prompt, str) else list(prompt), **fields}
        found = self.post("/v1/completions", body)
        _check(found, lambda choice: isinstance(choice.get("text"), str))
        return dict(found)

    def chat(self, question: str, **fields: Any) -> dict[str, Any]:
        """The whole answer, with a choice that has a message."""
        found = self.post("/v1/chat/completions", self.question(question, **fields))
        _check(found, lambda choice: isinstance(choice.get("message"), dict))
        return dict(found)

    def question(self, text: str, **fields: Any) -> dict[str, Any]:
        return {"model": self.model, "messages": [{"role": "user", "content": text}], **fields}

    def stream(self, path: str, body: Mapping[str, Any], leave_after: int | None = None) -> list[dict[str, Any]]:
        """Events up to [DONE], or the first few of them by a client that then leaves."""
        events: list[dict[str, Any]] = []
        deadline = time.monotonic() + self.timeout_s
        with self._ask("POST", path, {**body, "stream": True}) as answer:
            for line in answer:
                if time.monotonic() > deadline:
                    raise RequestFailed("silent", f"{path}: not at its end after {self.timeout_s:.0f} s")
                if not line.startswith(b"data:"):
                    continue
                if line[5:].strip() == b"[DONE]":
                    return events
                events.append(_event(line[5:]))
                if leave_after is not None and len(events) >= leave_after:
                    return events
        raise RequestFailed("garbage", f"{path}: the stream ended without [DONE] after {len(events)} events")

    @contextmanager
    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer with status 200."""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout_s)
        headers = {"authorization": f"Bearer {self.api_key or 'EMPTY'}", "connection": "close"}
        data = None if body is None else json.dumps(body)
        if data is not None:
            headers["content-type"] = "application/json"
        try:
            connection.request(method, parts.path + path, data, headers)
            answer = connection.getresponse()
            if answer.status != 200:
                text = answer.read().decode(errors="replace")[:SHOWN]
                raise RequestFailed("http-error", f"{path} was answered {answer.status}: {text}", answer.status)
            yield answer
        except TimeoutError as error:
            raise RequestFailed("silent", f"{path}: no answer in {self.timeout_s:.0f} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise RequestFailed("unreachable", f"{path}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()


def text_of(answer: Mapping[str, Any]) -> str:
    """All that the first choice says, reasoning included."""
    choice = answer["choices"][0]
    message = choice.get("message") or {}
    said = (
        choice.get("text"),
        message.get("content"),
        message.get("reasoning_content") or message.get("reasoning"),
    )
    return "\n".join(one for one in said if one)


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        shown = data[:SHOWN].decode(errors="replace")
        raise RequestFailed("garbage", f"the answer is not JSON: {shown!r}") from error


def _event(data: bytes) -> dict[str, Any]:
    found = _parse(data)
    if not isinstance(found, dict):
        raise RequestFailed("garbage", f"an event is not an object: {data[:SHOWN]!r}")
    if found.get("error"):
        raise RequestFailed("http-error", f"the stream broke off: {found['error']}", 500)
    return found


def _check(found: Any, is_right: Any) -> None:
    choices = found.get("choices") if isinstance(found, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict) or not is_right(choices[0]):
        raise RequestFailed("garbage", f"the answer has no choice with a text: {str(found)[:SHOWN]!r}")
