"""The application: every path and what stands before it; knows no engine's inside.

app = build_app(Service(engine, directory, config))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from firesteel.errors import EngineDied, UserError
from firesteel.server.chat import Chat
from firesteel.server.completions import Completions
from firesteel.server.errors import ApiError, ClientGone, answer_error
from firesteel.server.journal import Journal
from firesteel.server.page import show_page
from firesteel.server.responses import Responses
from firesteel.server.service import Service
from firesteel.server.status import Status

Endpoint = Callable[[HttpRequest], Awaitable[Response]]
HANDLED = (ApiError, UserError, EngineDied, TimeoutError, ClientGone, HTTPException, Exception)


def build_app(service: Service) -> Starlette:
    def locked(endpoint: Endpoint) -> Endpoint:
        """Only for those who have the key."""

        async def answer(request: HttpRequest) -> Response:
            service.keys.check(request.headers.get("authorization"))
            return await endpoint(request)

        return answer

    chat, completions, status = Chat(service), Completions(service), Status(service)
    responses = Responses(service, chat)
    routes = [
        Route("/", show_page),
        Route("/v1/chat/completions", locked(chat.answer), methods=["POST"]),
        Route("/v1/completions", locked(completions.answer), methods=["POST"]),
        Route("/v1/responses", locked(responses.create), methods=["POST"]),
        Route("/v1/responses/{name}", locked(responses.find)),
        Route("/v1/responses/{name}", locked(responses.delete), methods=["DELETE"]),
        Route("/v1/responses/{name}/cancel", locked(responses.cancel), methods=["POST"]),
        Route("/v1/responses/{name}/input_items", locked(responses.list_input)),
        Route("/v1/models", locked(status.models)),
        Route("/v1/models/{name:path}", locked(status.model)),
        Route("/tokenize", locked(status.tokenize), methods=["POST"]),
        Route("/detokenize", locked(status.detokenize), methods=["POST"]),
        Route("/ledger", locked(status.ledger)),
        Route("/metrics", status.metrics),
        Route("/health", status.health),
        Route("/health/ready", status.health),
        Route("/health/live", status.live),
    ]
    journal = Middleware(Journal, metrics=service.metrics, shows_text=service.config.server.log_prompts)
    return Starlette(routes=routes, middleware=[journal], exception_handlers=dict.fromkeys(HANDLED, answer_error))
