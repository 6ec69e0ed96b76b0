"""A path of the API: who answers, what it takes and gives; routes and the OpenAPI document are made of these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

Endpoint = Callable[[HttpRequest], Awaitable[Response]]
GENERATES = (400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 504)
READS = (400, 401, 404, 408, 413, 415)


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    path: str
    answer: Endpoint
    says: str  # what it is for
    gives: type[msgspec.Struct] | str  # an object of JSON, or a media type
    takes: type[msgspec.Struct] | None = None  # the body of a POST; without one it is a GET
    verb: str | None = None  # where it is neither
    streams: bool = False  # where asked, server-sent events come instead
    is_open: bool = False  # to those without the key
    names: Sequence[str] = ()  # what a parameter of the path may be; empty is anything
    errors: tuple[int, ...] = (401,)
    unready: int | None = None  # a status with the same answer, while no engine is ready

    @property
    def method(self) -> str:
        return self.verb or ("GET" if self.takes is None else "POST")
