"""The endpoint /v1/chat/completions: continues a conversation, whole or in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from msgspec import UNSET
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from firesteel.chat.format import Message
from firesteel.server.chat.answer import ChatAnswer
from firesteel.server.chat.conversation import find_grammar, may_need_grammar, render_chat
from firesteel.server.generate.choice import ChatReader, Choice
from firesteel.server.generate.sampling import sampling_params
from firesteel.server.http.body import read_body
from firesteel.server.http.errors import ApiError, json_response
from firesteel.server.http.keys import owner_of
from firesteel.server.http.sse import DONE, Computed, EventStream, event, while_client_waits
from firesteel.server.observe.access_log import LogEntry, entry_of
from firesteel.server.openai.answers import ChatChunk, ChatCompletion
from firesteel.server.openai.requests import ChatRequest
from firesteel.server.service import Service, count_usage, new_id
from firesteel.types import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """A conversation to continue, once per choice."""

    name: str
    model: str
    asked: ChatRequest
    prompt: list[int]
    params: SamplingParams
    choices: list[Choice]
    entry: LogEntry


class Chat:
    def __init__(self, service: Service) -> None:
        self.service = service

    async def answer(self, request: HttpRequest) -> Response:
        config = self.service.config.server
        asked = await read_body(request, ChatRequest, config)
        async with while_client_waits(request.receive):
            turn = await self.prepare(asked, entry_of(request.scope), owner_of(request.scope))
        if turn.asked.stream:
            return EventStream(self.stream(turn), config)
        return Computed(lambda: self.whole(turn), config)

    async def prepare(self, asked: ChatRequest, entry: LogEntry, owner: str) -> ChatTurn:
        service = self.service
        model, name = service.check_model(asked.model), new_id("chatcmpl")
        check_fields(asked)
        messages = await self.render(asked)
        prompt = await service.encode_chat(messages)
        room = service.room_after(len(prompt))
        grammar = await self.find_grammar(asked) if may_need_grammar(asked) else None
        params = sampling_params(
            asked,
            service.defaults,
            room=room,
            max_tokens=asked.max_completion_tokens or asked.max_tokens,
            logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
            grammar=grammar,
        )
        stops = params.stop_ids(service.stop_ids | service.harmony.stop_token_ids)
        salt = service.salt_of(owner, asked.cache_salt)
        requests = service.requests(name, prompt, params, count=asked.n or 1, stops=stops, cache_salt=salt)
        entry.note_prompt(service.tokenizer, prompt)
        return ChatTurn(
            name=name,
            model=model,
            asked=asked,
            prompt=prompt,
            params=params,
            choices=[Choice(request=request, reader=ChatReader(service.harmony, params)) for request in requests],
            entry=entry,
        )

    async def render(self, asked: ChatRequest) -> list[Message]:
        """Renders the conversation; outside the event loop if it has schemas, which may be large."""
        render = partial(render_chat, asked, prompt_date=self.service.config.server.prompt_date)
        return await asyncio.to_thread(render) if may_need_grammar(asked) else render()

    async def find_grammar(self, asked: ChatRequest) -> str | None:
        """Returns the grammar of the answer after its trial, which only a request that may be admitted gets."""
        self.service.check_ready()
        self.service.admission.check_room(asked.n or 1)
        grammar = await asyncio.to_thread(find_grammar, asked)
        if grammar is None:
            return None
        await self.service.trials.check(grammar)
        return grammar.text

    def new_answers(self, turn: ChatTurn) -> list[ChatAnswer]:
        return [ChatAnswer(index, turn.asked, self.service.tokenizer) for index in range(len(turn.choices))]

    async def whole(self, turn: ChatTurn) -> Response:
        answers = self.new_answers(turn)
        async with aclosing(self.service.run(turn.choices, turn.entry)) as pieces:
            async for index, piece in pieces:
                answers[index].add(piece)
        completion = ChatCompletion(
            id=turn.name,
            created=self.service.now(),
            model=turn.model,
            choices=[answer.whole() for answer in answers],
            usage=count_usage(turn.choices),
            prompt_token_ids=turn.prompt if turn.asked.return_token_ids else UNSET,
        )
        return json_response(completion)

    async def stream(self, turn: ChatTurn) -> AsyncGenerator[bytes, None]:
        options, answers = turn.asked.stream_options, self.new_answers(turn)
        has_usage = options is not None and bool(options.include_usage)
        is_continuous = options is not None and bool(options.continuous_usage_stats)
        chunk = ChatChunk(
            id=turn.name,
            created=self.service.now(),
            model=turn.model,
            choices=[],
            usage=None if has_usage else UNSET,
            prompt_token_ids=turn.prompt if turn.asked.return_token_ids else UNSET,
        )
        async with aclosing(self.service.run(turn.choices, turn.entry)) as pieces:
            async for index, piece in pieces:
                answers[index].add(piece)
                choice = answers[index].chunk()
                if choice is not None:
                    chunk.choices = [choice]
                    if is_continuous:
                        chunk.usage = count_usage(turn.choices)
                    yield event(chunk)
                    chunk.prompt_token_ids = UNSET
        if has_usage:
            chunk.choices, chunk.usage = [], count_usage(turn.choices)
            yield event(chunk)
        yield DONE


def check_fields(asked: ChatRequest) -> None:
    """Refuses combinations of fields that are valid on their own."""
    if asked.top_logprobs is not None and not asked.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs = true", param="top_logprobs")
    if asked.stream_options is not None and not asked.stream:
        raise ApiError(400, "stream_options needs stream = true", param="stream_options")
    if asked.tool_choice not in (None, "none", "auto") and not asked.tools:
        raise ApiError(400, "tool_choice needs tools", param="tool_choice")
