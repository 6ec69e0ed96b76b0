"""The endpoint /v1/chat/completions: a conversation in, the assistant's message out, whole or in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from msgspec import UNSET
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from firesteel.server.chat.answer import ChatAnswer
from firesteel.server.chat.conversation import render_chat
from firesteel.server.chat.response_format import find_grammar, has_form
from firesteel.server.generate.choice import ChatReader
from firesteel.server.generate.sampling import sampling_params
from firesteel.server.http.body import read_body
from firesteel.server.http.errors import ApiError, json_response
from firesteel.server.http.sse import DONE, Computed, EventStream, event
from firesteel.server.observe.access_log import Entry, entry_of
from firesteel.server.openai.answers import ChatChunk, ChatCompletion
from firesteel.server.openai.requests import ChatRequest
from firesteel.server.service import Service, count_usage, new_id
from firesteel.types import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A conversation that is to be continued."""

    name: str
    model: str
    asked: ChatRequest
    requests: list[Request]
    readers: list[ChatReader]
    answers: list[ChatAnswer]
    entry: Entry


class Chat:
    def __init__(self, service: Service) -> None:
        self.service = service

    async def answer(self, request: HttpRequest) -> Response:
        config = self.service.config.server
        turn = await self.prepare(await read_body(request, ChatRequest, config), entry_of(request.scope))
        if turn.asked.stream:
            return EventStream(self.stream(turn), config)
        return Computed(lambda: self.whole(turn), config)

    async def prepare(self, asked: ChatRequest, entry: Entry) -> Turn:
        service = self.service
        model, name = service.check_model(asked.model), new_id("chatcmpl")
        check_fields(asked)
        messages = render_chat(asked, prompt_date=service.config.server.prompt_date)
        prompt = await service.encode_chat(messages)
        grammar = await asyncio.to_thread(find_grammar, asked) if has_form(asked) else None
        params = sampling_params(
            asked, service.defaults, room=service.room_after(len(prompt)),
            max_tokens=asked.max_completion_tokens or asked.max_tokens,
            logprobs=(asked.top_logprobs or 0) if asked.logprobs else None, grammar=grammar,
        )  # fmt: skip
        stops = params.stop_ids(service.stop_ids | service.harmony.stop_token_ids)
        requests = service.requests(name, prompt, params, count=asked.n or 1, stops=stops)
        entry.note_prompt(service.tokenizer, prompt)
        return Turn(
            name=name, model=model, asked=asked, requests=requests, entry=entry,
            readers=[ChatReader(service.harmony, params, num_prompt=len(prompt)) for _ in requests],
            answers=[ChatAnswer(number, asked, service.tokenizer) for number in range(len(requests))],
        )  # fmt: skip

    async def whole(self, turn: Turn) -> Response:
        async with aclosing(self.service.run(turn.requests, turn.readers, turn.entry)) as pieces:
            async for number, piece in pieces:
                turn.answers[number].add(piece)
        made = ChatCompletion(
            id=turn.name, created=self.service.now(), model=turn.model,
            choices=[answer.whole() for answer in turn.answers],
            usage=count_usage([reader.tally for reader in turn.readers]),
            prompt_token_ids=list(turn.requests[0].token_ids) if turn.asked.return_token_ids else UNSET,
        )  # fmt: skip
        return json_response(made)

    async def stream(self, turn: Turn) -> AsyncGenerator[bytes, None]:
        options, tallies = turn.asked.stream_options, [reader.tally for reader in turn.readers]
        has_usage = options is not None and bool(options.include_usage)
        is_continuous = options is not None and bool(options.continuous_usage_stats)
        chunk = ChatChunk(
            id=turn.name, created=self.service.now(), model=turn.model, choices=[],
            usage=None if has_usage else UNSET,
            prompt_token_ids=list(turn.requests[0].token_ids) if turn.asked.return_token_ids else UNSET,
        )  # fmt: skip
        async with aclosing(self.service.run(turn.requests, turn.readers, turn.entry)) as pieces:
            async for number, piece in pieces:
                turn.answers[number].add(piece)
                choice = turn.answers[number].chunk()
                if choice is not None:
                    chunk.choices = [choice]
                    if is_continuous:
                        chunk.usage = count_usage(tallies)
                    yield event(chunk)
                    chunk.prompt_token_ids = UNSET
        if has_usage:
            chunk.choices, chunk.usage = [], count_usage(tallies)
            yield event(chunk)
        yield DONE


def check_fields(asked: ChatRequest) -> None:
    """What each field allows by itself, but not with the others."""
    if asked.top_logprobs is not None and not asked.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs = true", param="top_logprobs")
    if asked.stream_options is not None and not asked.stream:
        raise ApiError(400, "stream_options needs stream = true", param="stream_options")
    if asked.tool_choice not in (None, "none", "auto") and not asked.tools:
        raise ApiError(400, "tool_choice needs tools", param="tool_choice")
