"""The application: every path and what stands before it; knows no engine's inside.

app = build_app(Service(engine, directory, config))
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from firesteel.config import parse_origins
from firesteel.errors import EngineDied, UserError
from firesteel.server.chat.endpoint import Chat
from firesteel.server.completions.endpoint import Completions
from firesteel.server.http.errors import ApiError, ClientGone, answer_error
from firesteel.server.http.route import GENERATES, READS, Endpoint, Path
from firesteel.server.observe.access_log import Journal
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
from firesteel.server.status.endpoint import Status
from firesteel.server.status.page import show_page

HANDLED = (ApiError, UserError, EngineDied, TimeoutError, ClientGone, HTTPException, Exception)


def build_app(service: Service) -> ASGIApp:
    paths = list_paths(service)
    document = msgspec.json.encode(build_document(paths, service.names, service.engine.facts.vocab_size))

    async def show_document(request: HttpRequest) -> Response:
        return Response(document, media_type="application/json")

    routed = Starlette(
        routes=[
            *(Route(one.path, guard(one, service), methods=[one.method]) for one in paths),
            Route("/openapi.json", show_document),
        ],
        exception_handlers=dict.fromkeys(HANDLED, answer_error),
    )
    return Journal(share(routed, service), metrics=service.metrics, shows_text=service.config.server.log_prompts)


def share(app: ASGIApp, service: Service) -> ASGIApp:
    """With scripts of the web pages that may use it: browsers ask for leave, and keep answers from all others."""
    origins = parse_origins(service.config.server.allowed_origins)
    if not origins:
        return app
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=("GET", "POST", "DELETE"), allow_headers=("*",),
        expose_headers=("x-request-id", "retry-after"),
    )  # fmt: skip


def guard(one: Path, service: Service) -> Endpoint:
    """Lets those in who have the key."""

    async def answer(request: HttpRequest) -> Response:
        if not one.is_open:
            service.keys.check(request.headers.get("authorization"))
        return await one.answer(request)

    return answer


def list_paths(service: Service) -> Sequence[Path]:
    chat, completions, status = Chat(service), Completions(service), Status(service)
    return [
        Path(path="/", answer=show_page, says="A page for people", gives="text/html", is_open=True, errors=()),
        Path(
            path="/v1/chat/completions", answer=chat.answer, says="Continue a conversation", takes=ChatRequest,
            gives=ChatCompletion, streams=True, errors=GENERATES,
        ),
        Path(
            path="/v1/completions", answer=completions.answer, says="Continue texts", takes=CompletionRequest,
            gives=Completion, streams=True, errors=GENERATES,
        ),
        *Responses(service, chat).paths(),
        Path(path="/v1/models", answer=status.models, says="What is served", gives=ModelList),
        Path(
            path="/v1/models/{name:path}", answer=status.model, says="One of them", gives=Model,
            names=service.names, errors=(401, 404),
        ),
        Path(
            path="/tokenize", answer=status.tokenize, says="Tokens of a text or of a conversation's prompt",
            takes=TokenizeRequest, gives=Tokens, errors=READS,
        ),
        Path(
            path="/detokenize", answer=status.detokenize, says="The text of tokens", takes=DetokenizeRequest,
            gives=Text, errors=READS,
        ),
        Path(path="/ledger", answer=status.ledger, says="What ran", gives=LedgerAnswer),
        Path(
            path="/metrics", answer=status.metrics, says="Figures for Prometheus", gives=CONTENT_TYPE_LATEST,
            is_open=True, errors=(),
        ),
        Path(
            path="/health", answer=status.health, says="Whether requests are served", gives=Health, is_open=True,
            unready=503, errors=(),
        ),
        Path(
            path="/health/ready", answer=status.health, says="The same", gives=Health, is_open=True, unready=503,
            errors=(),
        ),
        Path(
            path="/health/live", answer=status.live, says="Whether this process answers", gives=Health,
            is_open=True, errors=(),
        ),
    ]  # fmt: skip
