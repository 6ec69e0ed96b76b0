"""Endpoints that generate nothing: models, health, metrics, ledger, tokenize and detokenize."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from firesteel.engine.statistics import Statistics
from firesteel.errors import EngineDied
from firesteel.server.chat.conversation import render_chat
from firesteel.server.http.body import read_body
from firesteel.server.http.errors import ApiError, json_response
from firesteel.server.openai.answers import (
    Health,
    HealthStatus,
    LedgerAnswer,
    LedgerDrafts,
    LedgerLine,
    Model,
    ModelList,
    Text,
    Tokens,
)
from firesteel.server.openai.requests import ChatRequest, DetokenizeRequest, TokenizeRequest
from firesteel.server.service import Ending, Service

T = TypeVar("T")

ANSWER_S = 2.0  # time limit of an answer: an engine in a long step answers after it


def find_ending(asked: TokenizeRequest) -> Ending:
    """Returns how the prompt of a conversation ends."""
    if not asked.continue_final_message:
        return "closed" if asked.add_generation_prompt is False else "prompt"
    if asked.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt exclude each other"
        raise ApiError(400, message, param="add_generation_prompt")
    return "open"


def find_drafts(kind: str, now: Statistics | None) -> LedgerDrafts | None:
    """Returns what was drafted; None if nothing ever is, or if no engine answers."""
    if kind == "off" or now is None:
        return None
    return LedgerDrafts(
        kind=kind,
        drafts=now.drafts,
        draft_tokens=now.draft_tokens,
        accepted_tokens=now.accepted_tokens,
        accepted_at=now.accepted_at,
    )


class StatusEndpoints:
    def __init__(self, service: Service) -> None:
        self.service = service

    async def models(self, request: HttpRequest) -> Response:
        names = self.service.names
        data = [self._model(name) for name in names]
        return json_response(ModelList(data=data, first_id=names[0], last_id=names[-1]))

    async def model(self, request: HttpRequest) -> Response:
        return json_response(self._model(self.service.check_model(request.path_params["name"])))

    async def health(self, request: HttpRequest) -> Response:
        """Answers 200 while requests are served, 503 while they are not."""
        health = self.find_health()
        return json_response(health, status=200 if health.ready else 503)

    async def live(self, request: HttpRequest) -> Response:
        """Answers 200, or 503 once no engine is started again: the process is about to exit."""
        health = self.find_health()
        return json_response(health, status=200 if health.live else 503)

    async def metrics(self, request: HttpRequest) -> Response:
        service = self.service
        num_deaths = service.engine.num_deaths  # before the engine is asked, so that both are of the same engine
        text = service.metrics.render(
            await self.statistics(),
            num_deaths=num_deaths,
            num_under_way=service.admission.num_under_way,
        )
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def ledger(self, request: HttpRequest) -> Response:
        engine, facts = self.service.engine, self.service.engine.facts
        await self._in_time(engine.refresh_ledger)
        ran, now = msgspec.convert(engine.ledger, list[LedgerLine]), await self.statistics()
        return json_response(
            LedgerAnswer(
                device=facts.device,
                kernels=facts.kernels,
                formats=facts.formats,
                sinks=facts.sinks,
                graphs=None if now is None else now.graphs,
                ran=ran,
                late_compilations=None if now is None else now.late_compilations,
                late_captures=None if now is None else now.late_captures,
                prompt_steps={} if now is None else now.prompt_steps(),
                draft_steps={} if now is None else now.draft_steps(),
                drafts=find_drafts(self.service.config.speculate.speculate, now),
            )
        )

    async def tokenize(self, request: HttpRequest) -> Response:
        service = self.service
        asked = await read_body(request, TokenizeRequest, service.config.server)
        service.check_model(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise ApiError(400, "give either prompt or messages", param="prompt")
        if asked.messages is None:
            token_ids = await service.encode(asked.prompt or "")
        else:
            chat = ChatRequest(messages=asked.messages, tools=asked.tools, reasoning_effort=asked.reasoning_effort)
            rendered = render_chat(chat, prompt_date=service.config.server.prompt_date)
            token_ids = await service.encode_chat(rendered, ending=find_ending(asked))
        spelled = await service.spell(token_ids) if asked.return_token_strs else None
        return json_response(
            Tokens(count=len(token_ids), max_model_len=service.max_context, tokens=token_ids, token_strs=spelled)
        )

    async def detokenize(self, request: HttpRequest) -> Response:
        asked = await read_body(request, DetokenizeRequest, self.service.config.server)
        self.service.check_model(asked.model)
        return json_response(Text(prompt=await self.service.decode(asked.tokens)))

    def find_health(self) -> Health:
        engine = self.service.engine
        if engine.failure is not None:
            return self._health("failed", "no engine runs, and none is restarted; see the log")
        if self.service.admission.is_stopping:
            return self._health("stopping", "the server is stopping")
        if not engine.is_ready:
            return self._health("degraded", "the engine died and is restarting")
        return self._health("ready", None)

    async def statistics(self) -> Statistics | None:
        """Returns None while no engine runs or answers in time."""
        return await self._in_time(self.service.engine.statistics)

    async def _in_time(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Returns the engine's answer; None while no engine runs or answers in time."""
        if not self.service.engine.is_ready:
            return None
        with suppress(EngineDied, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                return await ask()
        return None

    def _health(self, status: HealthStatus, reason: str | None) -> Health:
        return Health(
            status=status,
            live=status != "failed",
            ready=status == "ready",
            engine_deaths=self.service.engine.num_deaths,
            reason=reason,
        )

    def _model(self, name: str) -> Model:
        return Model(
            id=name,
            created=self.service.created,
            created_at=datetime.datetime.fromtimestamp(self.service.created, datetime.UTC).isoformat(),
            display_name=name,
            root=self.service.root,
            max_model_len=self.service.max_context,
            max_input_tokens=self.service.max_context,
            max_tokens=self.service.max_context,
            formats=self.service.engine.facts.formats,
        )
