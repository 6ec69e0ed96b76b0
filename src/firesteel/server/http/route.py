"""A route of the API: its handler, body and answer. Routing and the OpenAPI document are built from these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from firesteel.server.openai.answers import ErrorAnswer

Endpoint = Callable[[HttpRequest], Awaitable[Response]]
GENERATES = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)
READS = (400, 401, 403, 404, 408, 413, 415)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRoute:
    path: str
    answer: Endpoint
    says: str  # summary
    gives: type[msgspec.Struct] | str  # a JSON object, or a media type
    takes: type[msgspec.Struct] | None = None  # the body of a POST; None is a GET
    verb: str | None = None  # any other method
    streams: bool = False  # server-sent events on request
    is_open: bool = False  # without the API key
    names: Sequence[str] = ()  # allowed values of the path parameter; empty allows all
    errors: tuple[int, ...] = (401,)
    failure: type[msgspec.Struct] = ErrorAnswer  # the answer with one of these statuses
    unready: int | None = None  # status of the same answer while no engine is ready

    @property
    def method(self) -> str:
        return self.verb or ("GET" if self.takes is None else "POST")
