"""Errors in the shape of Anthropic's API, for every answer under /v1/messages."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from firesteel.server.anthropic.answers import AnthropicError, ErrorDetails, ErrorText
from firesteel.server.anthropic.schema import PromptRequest
from firesteel.server.anthropic.tools import find_places
from firesteel.server.http.errors import ApiError, ErrorShape, set_shape
from firesteel.server.observe.access_log import entry_of
from firesteel.server.service import ContextExceeded

PATH = "/v1/messages"
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
NO_THREADS = "thread_unsupported_request"  # clients that read it send the whole conversation instead
# Names of a chat's fields in this API.
FIELDS = {
    ".function.parameters": ".input_schema",
    ".function.name": ".name",
    "response_format.json_schema.schema": "output_config.format.schema",
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
}


def spell_error(error: ApiError, scope: Scope) -> AnthropicError:
    text = str(error)
    if error.param is not None and error.param not in text:
        text = f"{error.param}: {text}"  # the shape has no other place for it
    failure = ErrorText(type=find_kind(error), message=text)
    if error.code == NO_THREADS:
        failure.details = ErrorDetails(error_code=NO_THREADS, unsupported=["thread"])
    return AnthropicError(error=failure, request_id=entry_of(scope).request_id)


def find_kind(error: ApiError) -> str:
    if error.status in KINDS:
        return KINDS[error.status]
    if error.status < 500:
        return "invalid_request_error"
    return "overloaded_error" if error.retry_s else "api_error"


class MessagesShape:
    """The layer that gives requests under /v1/messages errors in Anthropic's shape, and its name of their id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (scope["path"] + "/").startswith(f"{PATH}/"):
            await self.app(scope, receive, send)
            return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"request-id", entry_of(scope).request_id.encode())]
            await send(message)

        set_shape(scope, ErrorShape(spell=spell_error, event="error"))
        await self.app(scope, receive, send_with_id)


def translate(error: ApiError, asked: PromptRequest) -> ApiError:
    """Returns the error of a chat as one of this API: its names of fields, and the sentence for long prompts."""
    if isinstance(error, ContextExceeded):
        # Clients match this sentence to shorten the conversation.
        text = f"prompt is too long: {error.num_prompt} tokens > {error.max_context} maximum"
        return ApiError(400, text, code=error.code)
    places = find_places(asked.tools or ())
    param = None if error.param is None else rename(error.param, places)
    return ApiError(error.status, rename(str(error), places), param=param, code=error.code, retry_s=error.retry_s)


def rename(text: str, places: list[int]) -> str:
    """Renames fields of a chat in a text; `places` are the request's indices of the chat's tools."""
    for name, ours in FIELDS.items():
        text = text.replace(name, ours)
    return re.sub(
        r"\btools\[(\d+)\]", lambda m: f"tools[{places[int(m[1])] if int(m[1]) < len(places) else m[1]}]", text
    )
