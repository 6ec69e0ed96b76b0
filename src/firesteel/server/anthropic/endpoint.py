"""The endpoints of Anthropic's API: /v1/messages, whole or streamed, and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from firesteel.server.anthropic.answers import AnthropicError, AnthropicMessage, TokenCount, name_of
from firesteel.server.anthropic.errors import PATH, translate
from firesteel.server.anthropic.input import as_chat
from firesteel.server.anthropic.output import MessageWriter, Showing, count_usage
from firesteel.server.anthropic.schema import CountRequest, DisabledThinking, MessageRequest, PromptRequest
from firesteel.server.chat.endpoint import Chat, ChatTurn
from firesteel.server.generate.choice import Choice
from firesteel.server.http.body import read_body
from firesteel.server.http.errors import ApiError, json_response
from firesteel.server.http.keys import owner_of
from firesteel.server.http.route import GENERATES, READS, ApiRoute
from firesteel.server.http.sse import Computed, EventStream, event, while_client_waits
from firesteel.server.observe.access_log import LogEntry, entry_of
from firesteel.server.service import Service

T = TypeVar("T", bound=PromptRequest)
NOT_SENT = 422  # statuses of OpenAI's API that Anthropic's does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageJob:
    """A message to generate."""

    turn: ChatTurn
    writer: MessageWriter
    is_context_full: bool  # whether fewer tokens fit than were requested

    @property
    def choice(self) -> Choice:
        """The only choice of the turn."""
        return self.turn.choices[0]


class AnthropicMessages:
    def __init__(self, service: Service, chat: Chat) -> None:
        self.service = service
        self.chat = chat

    def routes(self) -> list[ApiRoute]:
        return [
            ApiRoute(
                path=PATH,
                answer=self.create,
                says="Answer a conversation, in the format of Anthropic's API",
                takes=MessageRequest,
                gives=AnthropicMessage,
                streams=True,
                errors=tuple(status for status in GENERATES if status != NOT_SENT),
                failure=AnthropicError,
            ),
            ApiRoute(
                path=f"{PATH}/count_tokens",
                answer=self.count,
                says="Tokens of a conversation's prompt, in the format of Anthropic's API",
                takes=CountRequest,
                gives=TokenCount,
                errors=READS,
                failure=AnthropicError,
            ),
        ]

    async def create(self, request: HttpRequest) -> Response:
        config = self.service.config.server
        asked = await self.read(request, MessageRequest)
        async with while_client_waits(request.receive):
            job = await self.prepare(asked, entry_of(request.scope), owner_of(request.scope))
        if asked.stream:
            return EventStream(self.stream(job), config)
        return Computed(lambda: self.whole(job), config)

    async def count(self, request: HttpRequest) -> Response:
        asked = await self.read(request, CountRequest)
        self.service.check_model(asked.model)
        chat = as_chat(asked)
        async with while_client_waits(request.receive):
            try:
                prompt = await self.service.encode_chat(await self.chat.render(chat))
            except ApiError as error:
                raise translate(error, asked) from None
        return json_response(TokenCount(input_tokens=len(prompt)))

    async def read(self, request: HttpRequest, kind: type[T]) -> T:
        try:
            return await read_body(request, kind, self.service.config.server)
        except ApiError as error:
            error.status = 400 if error.status == NOT_SENT else error.status
            raise

    async def prepare(self, asked: MessageRequest, entry: LogEntry, owner: str) -> MessageJob:
        chat = as_chat(asked)
        try:
            turn = await self.chat.prepare(chat, entry, owner)
        except ApiError as error:
            raise translate(error, asked) from None
        message = AnthropicMessage(
            id=turn.name.replace("chatcmpl-", "msg_"), model=turn.model, usage=count_usage(turn.choices[0])
        )
        return MessageJob(
            turn=turn,
            writer=MessageWriter(message, find_showing(asked)),
            is_context_full=turn.params.max_tokens < asked.max_tokens,
        )

    async def whole(self, job: MessageJob) -> Response:
        async with aclosing(self.service.run(job.turn.choices, job.turn.entry)) as pieces:
            async for _, piece in pieces:
                job.writer.push(piece)
        job.writer.finish(count_usage(job.choice), is_context_full=job.is_context_full)
        return json_response(job.writer.message)

    async def stream(self, job: MessageJob) -> AsyncGenerator[bytes, None]:
        """Begins with the first piece: an error before it is an HTTP error."""
        writer, is_begun = job.writer, False
        async with aclosing(self.service.run(job.turn.choices, job.turn.entry)) as pieces:
            async for _, piece in pieces:
                events = [] if is_begun else writer.begin(count_usage(job.choice))
                is_begun = True
                for new in (*events, *writer.push(piece)):
                    yield event(new, name_of(new))
        for new in writer.finish(count_usage(job.choice), is_context_full=job.is_context_full):
            yield event(new, name_of(new))


def find_showing(asked: MessageRequest) -> Showing:
    """Returns how the reasoning is shown: only to clients that asked for thinking."""
    match asked.thinking:
        case None | DisabledThinking():
            return "hidden"
        case thinking:
            return "omitted" if thinking.display == "omitted" else "shown"
