"""Errors of requests as HTTP status and error object: OpenAI's, unless the route's clients read another."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from firesteel.errors import EngineDied, EngineFailed, HostMemoryLow, UserError
from firesteel.server.openai.answers import ErrorAnswer, ErrorDetail
from firesteel.untrusted.panics import panics_as

log = logging.getLogger(__name__)
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "server_error",
}
RETRY_S = 2
GONE = 499  # status of a client that left, in the log and the metrics; it is never sent


class ApiError(Exception):
    """An error that ends a request with an HTTP status and an error object."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_s: int = 0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_s = retry_s  # for the header Retry-After; 0 leaves it out

    @property
    def body(self) -> ErrorAnswer:
        kind = KINDS.get(self.status, "invalid_request_error")
        return ErrorAnswer(error=ErrorDetail(message=str(self), type=kind, param=self.param, code=self.code))

    def response(self, scope: Scope) -> Response:
        headers = {"retry-after": str(self.retry_s)} if self.retry_s else {}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return json_response(shape_of(scope).spell(self, scope), status=self.status, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorShape:
    """The form of errors that the clients of some routes read."""

    spell: Callable[[ApiError, Scope], msgspec.Struct]  # the error object
    event: str | None = None  # name of the event that ends a stream


OPENAI_SHAPE = ErrorShape(spell=lambda error, _: error.body)


def set_shape(scope: Scope, shape: ErrorShape) -> None:
    scope.setdefault("state", {})["error_shape"] = shape


def shape_of(scope: Scope) -> ErrorShape:
    shape: ErrorShape = scope.get("state", {}).get("error_shape", OPENAI_SHAPE)
    return shape


class LibraryPanic(Exception):
    """A library written in Rust panicked. Unlike the panic, this is an Exception and gets the usual answer."""


def panics_as_faults() -> AbstractContextManager[None]:
    """Returns a context that raises LibraryPanic in place of a panic."""
    return panics_as(LibraryPanic, "a library panicked")


class PanicGuard:
    """A layer that turns panics of libraries into exceptions, which have an answer in JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with panics_as_faults():
            await self.app(scope, receive, send)


class ClientGone(Exception):
    """The client closed its connection: nobody reads the answer."""


def json_response(value: msgspec.Struct, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def as_api_error(error: Exception) -> ApiError:
    """Returns the error that a client sees; it never shows the inside of the server."""
    match error:
        case ApiError():
            return error
        case EngineFailed():
            return ApiError(503, "the engine died and is not restarted; see the server's log", code="engine_failed")
        case EngineDied():
            return ApiError(
                503,
                "the engine died during the request; the request may be sent again",
                code="engine_died",
                retry_s=RETRY_S,
            )
        case HostMemoryLow():
            return ApiError(503, str(error), code="host_memory_low", retry_s=RETRY_S)
        case UserError():
            return ApiError(400, str(error))
        case HTTPException():
            return ApiError(error.status_code, error.detail)
        case TimeoutError():
            return ApiError(504, "the request took longer than request_timeout_s allows", code="timeout")
    return ApiError(500, "the server failed on this request; see its log")


def note_error(scope: Scope, error: Exception) -> None:
    """Notes for the access log what ended the request, and its status if none was sent."""
    state = scope.setdefault("state", {})
    state["error"] = str(error) or type(error).__name__
    state["status"] = GONE if isinstance(error, ClientGone) else as_api_error(error).status


def log_fault(error: Exception) -> None:
    """Logs the trace of an error that no endpoint raises on purpose. The web framework never sees it."""
    if not isinstance(error, (ApiError, UserError, EngineDied, TimeoutError, ClientGone)):
        log.error("the server failed on a request", exc_info=error)


def explain_route(request: Request, error: Exception) -> Exception:
    """Returns the error of a path or method that does not exist, with its name; any other error as it is."""
    if not isinstance(error, HTTPException):
        return error
    method, path = request.method, request.url.path[:200]
    if error.status_code == 404:
        message = f"unknown path: {method} {path}; /openapi.json lists all paths"
        return ApiError(404, message, code="unknown_url")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{path} does not support {method}; it supports {allowed}"
        return ApiError(405, message, code="method_not_supported")
    return error


async def answer_error(request: Request, error: Exception) -> Response:
    """Handles every exception that an endpoint raises."""
    note_error(request.scope, error)
    if isinstance(error, ClientGone):
        return Response(status_code=GONE)
    response = as_api_error(explain_route(request, error)).response(request.scope)
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response
