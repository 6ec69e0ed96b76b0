"""Synchronous client for the levels that check answers. `load_client.py` is for the benchmark, which times them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2

from firesteel.lab.client import wire
from firesteel.lab.client.wire import RequestFailed

Prompt = str | Sequence[int]


def new_http() -> httpx2.Client:
    """Opens a connection per request: the server may close an idle one at the moment it is used."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx2.Client(limits=limits, trust_env=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    url: str  # without /v1
    model: str = ""
    api_key: str = ""
    timeout_s: float = 600.0  # of a whole answer
    http: httpx2.Client = field(default_factory=new_http, repr=False, compare=False)

    @classmethod
    def of(cls, url: str, api_key: str = "") -> Api:
        return cls(url=wire.find_root(url), api_key=api_key)

    def get(self, path: str) -> Any:
        with self._ask("GET", path) as answer:
            return wire.parse(answer.read())

    def get_text(self, path: str, *, timeout_s: float) -> str:
        with replace(self, timeout_s=timeout_s)._ask("GET", path) as answer:
            return answer.read().decode("utf-8", "replace")

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        with self._ask("POST", path, body) as answer:
            return wire.parse(answer.read())

    def find_model(self) -> tuple[str, int | None]:
        """Returns the name and context length of the served model."""
        return wire.read_models(self.get("/v1/models"), self.url)

    def complete(self, prompt: Prompt, **fields: Any) -> dict[str, Any]:
        """Completes a text or tokens; the answer has a choice with a text."""
        body = {"model": self.model, "prompt": prompt if isinstance(prompt, str) else list(prompt), **fields}
        answer = self.post("/v1/completions", body)
        _check(answer, lambda choice: isinstance(choice.get("text"), str))
        return dict(answer)

    def chat(self, question: str, **fields: Any) -> dict[str, Any]:
        """Asks a question; the answer has a choice with a message."""
        answer = self.post("/v1/chat/completions", self.question(question, **fields))
        _check(answer, lambda choice: isinstance(choice.get("message"), dict))
        return dict(answer)

    def question(self, text: str, **fields: Any) -> dict[str, Any]:
        return {"model": self.model, "messages": [{"role": "user", "content": text}], **fields}

    def stream(self, path: str, body: Mapping[str, Any], leave_after: int | None = None) -> list[dict[str, Any]]:
        """Returns the events up to [DONE], or the first `leave_after` and disconnects."""
        events: list[dict[str, Any]] = []
        deadline = time.monotonic() + self.timeout_s
        with self._ask("POST", path, {**body, "stream": True}) as answer:
            for line in answer.iter_lines():
                if time.monotonic() > deadline:
                    raise RequestFailed("silent", f"{path}: not finished after {self.timeout_s:.0f} s")
                event = wire.read_event(line.encode())
                if event is wire.DONE:
                    return events
                events += [] if event is None else [event]
                if leave_after is not None and len(events) >= leave_after:
                    return events
        raise RequestFailed("garbage", f"{path}: the stream ended without [DONE] after {len(events)} events")

    @contextmanager
    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Iterator[httpx2.Response]:
        """Yields an answer with status 200."""
        try:
            with self.http.stream(
                method,
                self.url + path,
                json=body,
                headers=wire.headers(self.api_key),
                timeout=wire.timeouts(self.timeout_s),
            ) as answer:
                if answer.status_code != 200:
                    raise wire.refuse(answer.status_code, answer.read(), path)
                yield answer
        except (httpx2.HTTPError, OSError) as error:
            raise wire.explain(error, path, self.timeout_s) from error


def text_of(answer: Mapping[str, Any]) -> str:
    """Returns the text of the first choice, reasoning included."""
    choice = answer["choices"][0]
    message = choice.get("message") or {}
    texts = (
        choice.get("text"),
        message.get("content"),
        message.get("reasoning_content") or message.get("reasoning"),
    )
    return "\n".join(text for text in texts if text)


def _check(answer: Any, is_right: Callable[[Mapping[str, Any]], bool]) -> None:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict) or not is_right(choices[0]):
        raise RequestFailed("garbage", f"the answer has no choice with a text: {str(answer)[: wire.SHOWN]!r}")
