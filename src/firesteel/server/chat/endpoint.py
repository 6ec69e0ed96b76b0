"""The endpoint /v1/chat/completions: continues a conversation, whole or in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from firesteel.chat.format import Message
from firesteel.server.chat.answer import ChatAnswer
from firesteel.server.chat.conversation import find_grammar, may_need_grammar, render_chat
from firesteel.server.generate.choice import ChatReader, Choice
from firesteel.server.generate.constraint import build_constraint, find_form
from firesteel.server.generate.prompt import check_prompt_logprobs, spell_prompt_logprobs, truncate
from firesteel.server.generate.sampling import sampling_params
from firesteel.server.http.body import read_body
from firesteel.server.http.errors import ApiError, json_response
from firesteel.server.http.keys import owner_of
from firesteel.server.http.sse import DONE, Computed, EventStream, event, while_client_waits
from firesteel.server.observe.access_log import LogEntry, entry_of
from firesteel.server.openai.answers import ChatChunk, ChatCompletion
from firesteel.server.openai.requests import AssistantMessage, ChatRequest
from firesteel.server.service import Service, count_usage, new_id
from firesteel.types import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """A conversation to continue, once per choice."""

    name: str
    model: str
    asked: ChatRequest
    prompt: list[int]
    prompt_text: str | UnsetType
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
        most = asked.max_completion_tokens or asked.max_tokens
        prompt = await service.encode_chat(messages, ending="open" if asked.continue_final_message else "prompt")
        prompt = truncate(prompt, asked.truncate_prompt_tokens, max_context=service.max_context, num_new=most)
        room = service.room_after(len(prompt))
        check_prompt_logprobs(len(prompt) * (asked.n or 1), asked.prompt_logprobs)
        grammar = await self.find_grammar(asked) if may_need_grammar(asked) else None
        params = sampling_params(
            asked,
            service.defaults,
            room=room,
            max_tokens=most,
            logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
            prompt_logprobs=asked.prompt_logprobs,
            grammar=grammar,
            bad_words=await service.encode_bad_words(asked.bad_words),
        )
        begun = service.harmony.open_channel(messages[-1].channel) if asked.continue_final_message else []
        echoed = messages[-1].content if asked.echo else ""
        stops = params.stop_ids(service.stop_ids | service.harmony.stop_token_ids)
        salt = service.salt_of(owner, asked.cache_salt)
        requests = service.requests(name, prompt, params, count=asked.n or 1, stops=stops, cache_salt=salt)
        entry.note_prompt(service.tokenizer, prompt)
        return ChatTurn(
            name=name if asked.request_id is None else f"chatcmpl-{asked.request_id}",
            model=model,
            asked=asked,
            prompt=prompt,
            prompt_text=await service.decode(prompt) if asked.return_prompt_text else UNSET,
            params=params,
            choices=[
                Choice(request=request, reader=ChatReader(service.harmony, params, begun, echoed=echoed))
                for request in requests
            ],
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
        form = find_form(asked)
        constraint = await build_constraint(form, self.service.trials) if form is not None else None
        grammar = await asyncio.to_thread(find_grammar, asked, constraint)
        if grammar is None:
            return None
        if asked.continue_final_message:
            message = "continue_final_message excludes constraints and strict tools, which hold for a whole message"
            raise ApiError(400, message, param="continue_final_message")
        await self.service.trials.check(grammar)
        return grammar.text

    def new_answers(self, turn: ChatTurn) -> list[ChatAnswer]:
        return [ChatAnswer(index, turn.asked, self.service.tokenizer) for index in range(len(turn.choices))]

    async def whole(self, turn: ChatTurn) -> Response:
        answers = self.new_answers(turn)
        scored: list[TokenLogprobs] = []
        async with aclosing(self.service.run(turn.choices, turn.entry)) as pieces:
            async for index, piece in pieces:
                answers[index].add(piece)
                scored += piece.prompt_logprobs if index == 0 else ()
        completion = ChatCompletion(
            id=turn.name,
            created=self.service.now(),
            model=turn.model,
            choices=[answer.whole() for answer in answers],
            usage=count_usage(turn.choices),
            prompt_token_ids=turn.prompt if turn.asked.return_token_ids else UNSET,
            prompt_text=turn.prompt_text,
        )
        num_top = turn.asked.prompt_logprobs
        if num_top is None:
            return json_response(completion)
        return await self.service.run_off_loop(
            len(scored) * (num_top + 1), partial(self.respond_with_scores, completion, scored)
        )

    def respond_with_scores(self, completion: ChatCompletion, scored: Sequence[TokenLogprobs]) -> Response:
        completion.prompt_logprobs = spell_prompt_logprobs(scored, self.service.tokenizer)
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
            prompt_text=turn.prompt_text,
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
                    chunk.prompt_token_ids = chunk.prompt_text = UNSET
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
    if asked.prompt_logprobs is not None and asked.stream:
        raise ApiError(400, "prompt_logprobs needs stream = false", param="prompt_logprobs")
    if asked.tool_choice not in (None, "none", "auto"):
        if not asked.tools:
            raise ApiError(400, "tool_choice needs tools", param="tool_choice")
        if form := find_form(asked):
            message = f"{form.name} constrains an answer, and tool_choice asks for a call: give one of them"
            raise ApiError(400, message, param="tool_choice")
    check_continuation(asked)


def check_continuation(asked: ChatRequest) -> None:
    """Refuses fields about the end of the prompt that contradict each other."""
    if not asked.continue_final_message:
        if asked.add_generation_prompt is False:
            message = (
                "add_generation_prompt = false needs continue_final_message = true: a new message is opened here"
            )
            raise ApiError(400, message, param="add_generation_prompt")
        if asked.echo:
            raise ApiError(400, "echo needs continue_final_message = true", param="echo")
        return
    if asked.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt exclude each other"
        raise ApiError(400, message, param="add_generation_prompt")
    last = asked.messages[-1]
    if not isinstance(last, AssistantMessage) or last.tool_calls:
        message = "continue_final_message needs an assistant's message without tool calls at the end"
        raise ApiError(400, message, param="messages")
