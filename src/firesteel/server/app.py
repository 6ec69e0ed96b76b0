"""The ASGI application: all routes, and the layers around them.

app = build_app(Service(engine, directory, config))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from firesteel.config import parse_origins
from firesteel.errors import EngineDied, UserError
from firesteel.server.anthropic.endpoint import AnthropicMessages
from firesteel.server.anthropic.errors import MessagesShape
from firesteel.server.chat.endpoint import Chat
from firesteel.server.completions.endpoint import Completions
from firesteel.server.http.drain import DrainGuard
from firesteel.server.http.errors import ApiError, ClientGone, PanicGuard, answer_error
from firesteel.server.http.guard import HostCheck, RequestGuard
from firesteel.server.http.keys import note_owner
from firesteel.server.http.route import GENERATES, READS, ApiRoute, Endpoint
from firesteel.server.observe.access_log import AccessLog
from firesteel.server.openai.answers import (
    ChatCompletion,
    Completion,
    Health,
    LedgerAnswer,
    Model,
    ModelList,
    Text,
    Tokens,
)
from firesteel.server.openai.requests import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from firesteel.server.openapi import build_document
from firesteel.server.responses.endpoint import Responses
from firesteel.server.service import Service
from firesteel.server.status.endpoint import StatusEndpoints
from firesteel.server.status.inventory import Inventory
from firesteel.server.status.ollama import Ollama
from firesteel.server.status.page import show_page

HANDLED = (ApiError, UserError, EngineDied, TimeoutError, ClientGone, HTTPException, Exception)


def build_app(service: Service) -> ASGIApp:
    routes = list_routes(service)
    document = msgspec.json.encode(build_document(routes, service.names, service.engine.facts.vocab_size))

    async def show_document(request: HttpRequest) -> Response:
        return Response(document, media_type="application/json")

    app = Starlette(
        routes=[
            *join_routes(routes, service),
            Route("/openapi.json", show_document),
        ],
        exception_handlers=dict.fromkeys(HANDLED, answer_error),
        middleware=[Middleware(PanicGuard)],
    )
    guarded = RequestGuard(
        add_cors(DrainGuard(app, service.admission.drain), service), HostCheck.of(service.config.server)
    )
    return AccessLog(MessagesShape(guarded), metrics=service.metrics, shows_text=service.config.server.log_prompts)


def add_cors(app: ASGIApp, service: Service) -> ASGIApp:
    """Adds CORS for the configured origins."""
    origins = parse_origins(service.config.server.allowed_origins)
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "retry-after"),
    )


def join_routes(routes: Sequence[ApiRoute], service: Service) -> list[Route]:
    """Joins the methods of each path, so that 405 names all of them."""
    by_path: dict[str, dict[str, ApiRoute]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    return [Route(path, guard(methods, service), methods=list(methods)) for path, methods in by_path.items()]


def guard(methods: Mapping[str, ApiRoute], service: Service) -> Endpoint:
    """Returns the handler of a path, which checks the API key first. A HEAD is answered as a GET."""

    async def answer(request: HttpRequest) -> Response:
        route = methods["GET" if request.method == "HEAD" else request.method]
        if not route.is_open:
            headers = request.headers
            owner = service.keys.check(headers.get("authorization"), headers.get("x-api-key"))
            note_owner(request.scope, owner)
        return await route.answer(request)

    return answer


def list_routes(service: Service) -> Sequence[ApiRoute]:
    chat, completions, status = Chat(service), Completions(service), StatusEndpoints(service)
    return [
        ApiRoute(path="/", answer=show_page, says="Web page", gives="text/html", is_open=True, errors=()),
        ApiRoute(
            path="/v1/chat/completions",
            answer=chat.answer,
            says="Continue a conversation",
            takes=ChatRequest,
            gives=ChatCompletion,
            streams=True,
            errors=GENERATES,
        ),
        ApiRoute(
            path="/v1/completions",
            answer=completions.answer,
            says="Continue texts",
            takes=CompletionRequest,
            gives=Completion,
            streams=True,
            errors=GENERATES,
        ),
        *Responses(service, chat).routes(),
        *AnthropicMessages(service, chat).routes(),
        ApiRoute(path="/v1/models", answer=status.models, says="List of served models", gives=ModelList),
        ApiRoute(
            path="/v1/models/{name:path}",
            answer=status.model,
            says="A served model",
            gives=Model,
            names=service.names,
            errors=(401, 404),
        ),
        ApiRoute(
            path="/tokenize",
            answer=status.tokenize,
            says="Tokens of a text or of a conversation's prompt",
            takes=TokenizeRequest,
            gives=Tokens,
            errors=READS,
        ),
        ApiRoute(
            path="/detokenize",
            answer=status.detokenize,
            says="The text of tokens",
            takes=DetokenizeRequest,
            gives=Text,
            errors=READS,
        ),
        *Inventory(service, status).routes(),
        *Ollama(service).routes(),
        ApiRoute(path="/ledger", answer=status.ledger, says="Ledger of the ops that ran", gives=LedgerAnswer),
        ApiRoute(
            path="/metrics",
            answer=status.metrics,
            says="Metrics for Prometheus",
            gives=CONTENT_TYPE_LATEST,
            is_open=True,
            errors=(),
        ),
        ApiRoute(
            path="/health",
            answer=status.health,
            says="Readiness: 200 while requests are served",
            gives=Health,
            is_open=True,
            unready=503,
            errors=(),
        ),
        ApiRoute(
            path="/health/ready",
            answer=status.health,
            says="Readiness, same as /health",
            gives=Health,
            is_open=True,
            unready=503,
            errors=(),
        ),
        ApiRoute(
            path="/health/live",
            answer=status.live,
            says="Liveness: 200 unless this process must be restarted",
            gives=Health,
            is_open=True,
            unready=503,
            errors=(),
        ),
    ]
