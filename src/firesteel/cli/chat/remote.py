"""A chat partner behind an OpenAI-compatible URL; knows HTTP, not what serves it."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from firesteel.cli.chat.partner import Piece, Turn, Wishes
from firesteel.errors import UserError

# Nothing bounds the time between two tokens: a long prompt on a slow machine takes minutes, and Ctrl-C ends it.
PATIENCE = httpx2.Timeout(10.0, read=None)


class RemotePartner:
    def __init__(self, url: str, *, api_key: str = "", model: str = "") -> None:
        """Asks the server what it serves; `model` may be left out where that is one."""
        self.url = complete_url(url)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._has_key = bool(api_key)
        try:
            self._client = httpx2.Client(headers=headers, timeout=PATIENCE)
        except UnicodeEncodeError as error:
            raise UserError("the API key has characters outside ASCII, which no HTTP header can carry") from error
        self.model = choose_model(self._list_models(), model, self.url)
        self.name = f"{self.model} at {self.url}"

    def answer(self, turns: list[Turn], wishes: Wishes) -> Generator[Piece, None, None]:
        body = {
            "model": self.model,
            "messages": turns,
            "stream": True,
            "stream_options": {"include_usage": True},
            "reasoning_effort": wishes.effort,
            "max_completion_tokens": wishes.max_tokens,
            "temperature": wishes.temperature,
        }
        given = {name: value for name, value in body.items() if value is not None}
        with self._asking(), self._client.stream("POST", f"{self.url}/chat/completions", json=given) as response:
            self._check(response)
            for event in httpx2.EventSource(response):
                if event.data == "[DONE]":
                    return
                yield read_chunk(event.data)
        raise UserError(f"{self.url} ended the answer in the middle: see the server's log")

    def _list_models(self) -> list[str] | None:
        """None where the server does not say."""
        with self._asking():
            response = self._client.get(f"{self.url}/models")
        if response.status_code == 404:
            return None
        self._check(response)
        try:
            return [str(one["id"]) for one in response.json()["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.url}/models is no list of models: is this an OpenAI-compatible URL?") from error

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise UserError(
                f"no server answers at {self.url} ({error}): start one with `firesteel serve`, or mend --url"
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise UserError(f"{self.url}: {error or type(error).__name__}") from error

    def _check(self, response: httpx2.Response) -> None:
        if response.is_success:
            return
        said = read_error(response.read())
        if response.status_code in (401, 403):
            cure = "another --api-key" if self._has_key else "--api-key or FIRESTEEL_API_KEY"
            raise UserError(f"{self.url} refuses: {said or 'wrong API key'}; give {cure}")
        raise UserError(f"{self.url} answers {response.status_code}: {said or response.reason_phrase}")


def complete_url(url: str) -> str:
    """The address that paths are added to: a bare host gets a scheme and /v1."""
    if "://" not in url:
        url = f"http://{url}"
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise UserError(f"--url {url}: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise UserError(f"--url {url}: wants an address like http://127.0.0.1:8000/v1")
    return f"{url.rstrip('/')}/v1" if parsed.path in ("", "/") else url.rstrip("/")


def choose_model(served: list[str] | None, wanted: str, url: str) -> str:
    if served is None:
        if not wanted:
            raise UserError(f"{url} does not list its models: name one with --model")
        return wanted
    known = ", ".join(served) or "none"
    if wanted and wanted not in served:
        raise UserError(f"{url} does not serve {wanted}; it serves {known}: choose with --model")
    if not wanted and len(served) != 1:
        raise UserError(f"{url} serves {known}: choose one with --model")
    return wanted or served[0]


def read_chunk(data: str) -> Piece:
    """One event of a chat completion; reasoning is `reasoning` or `reasoning_content`, as servers differ."""
    try:
        chunk = json.loads(data)
        if error := chunk.get("error"):
            raise UserError(f"the server broke off: {message_of(error)}")
        choice = chunk["choices"][0] if chunk.get("choices") else {}
        delta = choice.get("delta") or {}
        return Piece(
            content=delta.get("content") or "",
            reasoning=delta.get("reasoning") or delta.get("reasoning_content") or "",
            num_tokens=(chunk.get("usage") or {}).get("completion_tokens"),
            finish_reason=choice.get("finish_reason"),
        )
    except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"the server sent what is no chat completion chunk: {data:.80}") from error


def read_error(body: bytes) -> str:
    """The message in OpenAI's shape, else the text itself; empty where there is none."""
    text = body.decode("utf-8", "replace").strip()
    try:
        content: Any = json.loads(text)
    except ValueError:
        return text[:200]
    return message_of(content.get("error", content)) if isinstance(content, dict) else text[:200]


def message_of(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)
