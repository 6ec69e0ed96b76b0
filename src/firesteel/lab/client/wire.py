"""Shared by both HTTP clients: addresses, failures of requests, and events of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2

from firesteel.config import hide_in_text
from firesteel.errors import UserError

CONNECT_S = 10.0
SHOWN = 300  # characters of an answer quoted in an error
DONE = object()  # the last event of a stream
LOST = ("silent", "unreachable")  # kinds of failures of a server that hangs or is gone


class RequestFailed(UserError):
    """A request that failed or was answered wrongly."""

    def __init__(self, kind: str, words: str, status: int | None = None) -> None:
        super().__init__(hide_in_text(words))
        self.kind = kind  # "http-error", "garbage", "unreachable" or "silent"
        self.status = status


def find_root(url: str) -> str:
    """Returns the address that /v1/... is appended to; users write it with or without http:// and /v1."""
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, a missing bracket
        is_valid = False
    if not is_valid:
        raise UserError(f"{hide_in_text(url)!r} is not a server address: write it as http://HOST:PORT")
    return whole.rstrip("/").removesuffix("/v1").rstrip("/")


def headers(api_key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {api_key or 'EMPTY'}"}


def timeouts(silence_s: float) -> httpx2.Timeout:
    """Limits the silence between two reads, not the time of a whole answer."""
    return httpx2.Timeout(silence_s, connect=min(CONNECT_S, silence_s), pool=None)


def explain(error: httpx2.HTTPError | OSError, where: str, silence_s: float) -> RequestFailed:
    if isinstance(error, httpx2.TimeoutException) and not isinstance(error, httpx2.ConnectTimeout):
        return silence(where, silence_s)
    name = type(error).__name__
    return RequestFailed("unreachable", f"{where} cannot be reached: {f'{name}: {error}' if str(error) else name}")


def silence(where: str, silence_s: float) -> RequestFailed:
    return RequestFailed("silent", f"{where}: no answer in {silence_s:.0f} s")


def refuse(status: int, data: bytes, where: str) -> RequestFailed:
    text = data.decode("utf-8", "replace")[:SHOWN]
    return RequestFailed("http-error", f"{where} was answered {status}: {text}", status)


def parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        shown = data[:SHOWN].decode("utf-8", "replace")
        raise RequestFailed("garbage", f"the answer is not JSON: {shown!r}") from error


def read_event(line: bytes) -> Any:
    """Parses a line of a stream: an object, DONE, or None if the line holds no event."""
    if not line.startswith(b"data:"):
        return None
    data = line[len(b"data:") :].strip()
    if data == b"[DONE]":
        return DONE
    event = parse(data)
    if not isinstance(event, dict):
        raise RequestFailed("garbage", f"an event is not an object: {data[:SHOWN]!r}")
    if event.get("error"):
        raise RequestFailed("http-error", f"the stream was aborted: {event['error']}", 500)
    return event


def read_models(content: Any, where: str) -> tuple[str, int | None]:
    """Parses the answer to /v1/models: the first model's name, and its context length if the server states it."""
    try:
        first = content["data"][0]
        return str(first["id"]), find_context(first)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise RequestFailed("garbage", f"{where}/v1/models lists no model: {str(content)[:SHOWN]}") from error


def find_context(model: Mapping[str, Any]) -> int | None:
    """Reads the field of vLLM, SGLang and firesteel, or those of llama.cpp."""
    meta = model.get("meta") or {}
    for value in (model.get("max_model_len"), meta.get("n_ctx"), meta.get("n_ctx_train")):
        if isinstance(value, int) and value > 0:
            return value
    return None
