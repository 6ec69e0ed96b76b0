"""Reads a request's body within its limits of size and time, and parses its JSON.

Known fields with invalid values are errors that name the field, and so are those that are not supported
(openai/fields.py); unknown fields are logged.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from firesteel.config import ServerConfig
from firesteel.server.http.errors import ApiError, ClientGone
from firesteel.server.openai.fields import find_unread
from firesteel.server.openai.limits import MAX_CONTAINERS, MAX_TEXTS, MAX_UNKNOWN_FIELDS, MAX_VALUES

log = logging.getLogger(__name__)
T = TypeVar("T", bound=msgspec.Struct)
MIB = 1 << 20
BODY_TIMEOUT_S = 30.0
LARGE_BODY = 64 << 10  # bytes: larger ones are counted, and parsed outside the event loop
TEXT_ONLY = (
    "image_url",
    "input_image",
    "input_file",
    "input_audio",
    "file",
    "video_url",
    "audio_url",
    "image",
    "document",
)
_fields_of_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def read_body(request: Request, kind: type[T], config: ServerConfig) -> T:
    check_content_type(request)
    body = await read_bytes(request, config)
    return parse(body, kind) if len(body) <= LARGE_BODY else await asyncio.to_thread(parse, body, kind)


def check_content_type(request: Request) -> None:
    """Requires JSON: a page of another site may post text without a CORS preflight, but not JSON."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/json":
        raise ApiError(415, f"the body must be JSON: send content-type application/json, not {given or 'none'}")


async def read_bytes(request: Request, config: ServerConfig) -> bytes:
    limit = int(config.max_body_mib * MIB)
    too_large = ApiError(
        413, f"the body exceeds {config.max_body_mib:g} MiB (max_body_mib)", code="request_too_large"
    )
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, f"the body took longer than {BODY_TIMEOUT_S:g} s to arrive") from None
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(body)


def check_counts(body: bytes) -> None:
    """Refuses JSON with too many parts, before the cost of parsing it.

    Counting is fast and needs no parser: outside texts, every part has its own character. Texts are removed only if
    the count with them exceeds a limit.
    """
    if not _count_parts(body, body.count(b'"') // 2):
        return
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # without escaped quotes
    num_texts = plain.count(b'"') // 2
    outside = b"".join(plain.split(b'"')[::2]) if num_texts <= MAX_TEXTS else b""
    if excess := _count_parts(outside, num_texts):
        raise ApiError(400, f"the body has {excess}", code="too_many_values")


def _count_parts(outside: bytes, num_texts: int) -> str:
    """Returns which limit the parts of a body exceed; empty if none."""
    for count, limit, what in (
        (num_texts, MAX_TEXTS, "texts and names of fields"),
        (outside.count(b"{") + outside.count(b"["), MAX_CONTAINERS, "objects and lists"),
        (outside.count(b","), MAX_VALUES, "values"),
    ):
        if count > limit:
            return f"{count} {what}; at most {limit} are accepted"
    return ""


def parse(body: bytes, kind: type[T]) -> T:
    if len(body) > LARGE_BODY:
        check_counts(body)
    try:
        given = _fields_of_object.decode(body)
        unknown = given.keys() - known_fields(kind)
        if len(unknown) > MAX_UNKNOWN_FIELDS:
            raise ApiError(400, f"{len(unknown)} unknown fields; at most {MAX_UNKNOWN_FIELDS} are ignored")
        unknown -= check_unread(given, kind)
        value: T = decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        raise explain(error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if unknown:
        log.warning("unknown fields ignored", extra={"fields": [name[:64] for name in sorted(unknown)[:8]]})
    return value


def check_unread(given: Mapping[str, msgspec.Raw], kind: type[msgspec.Struct]) -> frozenset[str]:
    """Refuses fields that ask for what is not supported; returns those that are known to change nothing."""
    fields = find_unread(kind)
    unread = frozenset(given.keys() & fields.keys())
    for name in sorted(unread):
        field = fields[name]
        if not field.accepts(msgspec.json.decode(given[name])):
            only = f"; accepted: {msgspec.json.encode(field.accepted).decode()[1:-1]}" if field.accepted else ""
            message = f"{name} is not supported: {field.reason}{only}"
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    return unread


@lru_cache
def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind)


@lru_cache
def known_fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__)


def explain(error: msgspec.ValidationError) -> ApiError:
    """Turns msgspec's error into ours, with the place of the error in `param`."""
    what = str(error).partition(" - at `")[0]
    place = re.search(r"`\$\.?([^`]*)`$", str(error))
    param = place[1] or None if place else None
    if missing := re.search(r"missing required field `(\w+)`", what):
        param = f"{param}.{missing[1]}" if param else missing[1]
    if any(f"Invalid value '{kind}'" == what for kind in TEXT_ONLY):
        return ApiError(422, f"this model reads text only: {what}", param=param, code="unsupported_content")
    return ApiError(400, f"{param or 'body'}: {what}", param=param, code="invalid_value")


def only_given(**values: Any) -> dict[str, Any]:
    """Returns the values that are not None: null counts as not given."""
    return {name: value for name, value in values.items() if value is not None}
