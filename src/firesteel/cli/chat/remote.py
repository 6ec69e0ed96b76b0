"""A chat partner: an OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from firesteel.cli.chat.partner import AnswerOptions, AnswerPiece, Turn
from firesteel.config import hide_in_text
from firesteel.errors import UserError

# No limit on the time between two tokens: a long prompt on a slow machine takes minutes, and Ctrl-C ends it.
PATIENCE = httpx2.Timeout(10.0, read=None)


class RemotePartner:
    def __init__(self, url: str, *, api_key: str = "", model: str = "") -> None:
        """Asks the server for its models; `model` may be left out if there is only one."""
        self.url = complete_url(url)
        self.shown_url = hide_in_text(self.url)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._has_key = bool(api_key)
        try:
            self._client = httpx2.Client(headers=headers, timeout=PATIENCE)
        except UnicodeEncodeError as error:
            raise UserError("the API key has characters outside ASCII, which an HTTP header cannot hold") from error
        self.model = choose_model(self._list_models(), model, self.shown_url)
        self.name = f"{self.model} at {self.shown_url}"

    def answer(self, turns: list[Turn], options: AnswerOptions) -> Generator[AnswerPiece, None, None]:
        body = {
            "model": self.model,
            "messages": turns,
            "stream": True,
            "stream_options": {"include_usage": True},
            "reasoning_effort": options.effort,
            "max_completion_tokens": options.max_tokens,
            "temperature": options.temperature,
        }
        given = {name: value for name, value in body.items() if value is not None}
        with self._asking(), self._client.stream("POST", f"{self.url}/chat/completions", json=given) as response:
            self._check(response)
            for event in httpx2.EventSource(response):
                if event.data == "[DONE]":
                    return
                yield read_chunk(event.data)
        raise UserError(f"{self.shown_url} ended the answer before it was complete: see the server's log")

    def _list_models(self) -> list[str] | None:
        """Returns the served models; None if the server does not list them."""
        with self._asking():
            response = self._client.get(f"{self.url}/models")
        if response.status_code == 404:
            return None
        self._check(response)
        try:
            return [str(model["id"]) for model in response.json()["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.shown_url}/models is not a list of models: is it an OpenAI-compatible URL?"
            ) from error

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise UserError(
                f"no server answers at {self.shown_url} ({error}): start one with `firesteel serve`, or correct "
                "--url"
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise UserError(f"{self.shown_url}: {error or type(error).__name__}") from error

    def _check(self, response: httpx2.Response) -> None:
        if response.is_success:
            return
        said = read_error(response.read())
        if response.status_code in (401, 403):
            cure = "another --api-key" if self._has_key else "--api-key or FIRESTEEL_API_KEY"
            raise UserError(f"{self.shown_url} refused the request: {said or 'wrong API key'}; give {cure}")
        raise UserError(f"{self.shown_url} answered {response.status_code}: {said or response.reason_phrase}")


def complete_url(url: str) -> str:
    """Returns the base URL of the API; a bare host gets a scheme and /v1."""
    if "://" not in url:
        url = f"http://{url}"
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise UserError(f"--url {url}: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise UserError(f"--url {url}: must be an address like http://127.0.0.1:8000/v1")
    return f"{url.rstrip('/')}/v1" if parsed.path in ("", "/") else url.rstrip("/")


def choose_model(served: list[str] | None, wanted: str, url: str) -> str:
    if served is None:
        if not wanted:
            raise UserError(f"{url} does not list its models: choose one with --model")
        return wanted
    known = ", ".join(served) or "none"
    if wanted and wanted not in served:
        raise UserError(f"{url} does not serve {wanted}; it serves {known}: choose with --model")
    if not wanted and len(served) != 1:
        raise UserError(f"{url} serves {known}: choose one with --model")
    return wanted or served[0]


def read_chunk(data: str) -> AnswerPiece:
    """Parses an event of a chat completion; servers send reasoning as `reasoning` or `reasoning_content`."""
    try:
        chunk = json.loads(data)
        if error := chunk.get("error"):
            raise UserError(f"the server reported an error: {message_of(error)}")
        choice = chunk["choices"][0] if chunk.get("choices") else {}
        delta = choice.get("delta") or {}
        return AnswerPiece(
            content=delta.get("content") or "",
            reasoning=delta.get("reasoning") or delta.get("reasoning_content") or "",
            num_tokens=(chunk.get("usage") or {}).get("completion_tokens"),
            finish_reason=choice.get("finish_reason"),
        )
    except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"the server sent something else than a chat completion chunk: {data:.80}") from error


def read_error(body: bytes) -> str:
    """Returns the message of an error in OpenAI's format, else the text itself, which may be empty."""
    text = body.decode("utf-8", "replace").strip()
    try:
        content: Any = json.loads(text)
    except ValueError:
        return text[:200]
    return message_of(content.get("error", content)) if isinstance(content, dict) else text[:200]


def message_of(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)
