"""The endpoints under /v1/responses: create (whole, streamed or in the background), get, delete, cancel, count."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from starlette.datastructures import QueryParams
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse

from firesteel.server.chat.answer import spell_all
from firesteel.server.chat.endpoint import Chat
from firesteel.server.generate.choice import ChoicePiece
from firesteel.server.http.body import MIB, read_body
from firesteel.server.http.errors import ApiError, json_response, note_error, panics_as_faults
from firesteel.server.http.keys import owner_of
from firesteel.server.http.route import GENERATES, READS, ApiRoute
from firesteel.server.http.sse import Computed, EventStream, event, while_client_waits
from firesteel.server.observe.access_log import LogEntry, entry_of
from firesteel.server.openai.answers import ErrorAnswer, TokenLogprob
from firesteel.server.responses.answers import DeletedResponse, Event, InputItemList, InputTokens, Response
from firesteel.server.responses.background import BackgroundRuns, note_failure
from firesteel.server.responses.input import as_chat, check_supported, read_items
from firesteel.server.responses.job import ResponseJob, count_usage, describe, name_field
from firesteel.server.responses.output import ResponseWriter
from firesteel.server.responses.replay import replay
from firesteel.server.responses.schema import InputTokensRequest, Item, ResponseRequest
from firesteel.server.responses.store import ResponseStore, Stored, complete_items, list_items
from firesteel.server.responses.toolbox import open_toolbox
from firesteel.server.service import Service


class Responses:
    def __init__(self, service: Service, chat: Chat) -> None:
        self.service = service
        self.chat = chat
        self.store = ResponseStore(int(service.config.server.response_store_mib * MIB))
        self.background = BackgroundRuns(service, self.keep)

    def routes(self) -> list[ApiRoute]:
        path, known = "/v1/responses/{name}", (401, 404)
        return [
            ApiRoute(
                path="/v1/responses",
                answer=self.create,
                says="Answer a list of items",
                takes=ResponseRequest,
                gives=Response,
                streams=True,
                errors=GENERATES,
            ),
            ApiRoute(
                path="/v1/responses/input_tokens",
                answer=self.count_input,
                says="Count the input tokens of a response",
                takes=InputTokensRequest,
                gives=InputTokens,
                errors=READS,
            ),
            ApiRoute(
                path="/v1/responses/compact",
                verb="POST",
                answer=self.refuse_compaction,
                says="Compaction, which is not available",
                gives=ErrorAnswer,
                errors=(400, 401),
            ),
            ApiRoute(
                path=path,
                answer=self.find,
                says="A stored response",
                gives=Response,
                streams=True,
                errors=(400, *known),
            ),
            ApiRoute(
                path=path,
                verb="DELETE",
                answer=self.delete,
                says="Delete a stored response",
                gives=DeletedResponse,
                errors=known,
            ),
            ApiRoute(
                path=f"{path}/cancel",
                verb="POST",
                answer=self.cancel,
                says="Cancel a background response",
                gives=Response,
                errors=(400, *known),
            ),
            ApiRoute(
                path=f"{path}/input_items",
                answer=self.list_input,
                says="Input items of a response",
                gives=InputItemList,
                errors=(400, *known),
            ),
        ]

    async def create(self, request: HttpRequest) -> HttpResponse:
        config = self.service.config.server
        asked = await read_body(request, ResponseRequest, config)
        async with while_client_waits(request.receive):
            job = await self.prepare(asked, entry_of(request.scope), owner_of(request.scope))
        if asked.background:
            self.background.start(job)
            return EventStream(job.log.follow(), config) if asked.stream else json_response(job.writer.response)
        if asked.stream:
            return EventStream(self.stream(job, request), config)
        return Computed(lambda: self.whole(job), config)

    async def prepare(self, asked: ResponseRequest, entry: LogEntry, owner: str) -> ResponseJob:
        check_supported(asked)
        given, history = self.read_input(asked, owner)
        toolbox = open_toolbox(asked, [*history, *given])
        try:
            turn = await self.chat.prepare(as_chat(asked, [*history, *given], toolbox), entry, owner)
        except ApiError as error:
            raise name_field(error, toolbox) from None
        response = describe(asked, turn, toolbox, created=self.service.now())
        spell = self.spell if turn.asked.logprobs else None
        job = ResponseJob(
            turn=turn,
            owner=owner,
            stored=Stored(response, history, complete_items(given), owner) if response.store else None,
            writer=ResponseWriter(response, spell, toolbox),
        )
        if job.stored is not None and asked.background:
            job.stored.log = job.log
        return job

    def read_input(self, asked: ResponseRequest, owner: str) -> tuple[list[Item], list[Item]]:
        """Returns the items of the request, references resolved, and those of earlier responses."""
        given = [
            self.store.find_item(item.id or "", owner, f"input[{number}].id")
            if item.type == "item_reference"
            else item
            for number, item in enumerate(read_items(asked))
        ]
        if asked.previous_response_id is None:
            return given, []
        previous = self.store.find_previous(asked.previous_response_id, owner)
        if previous.response.status in ("queued", "in_progress"):
            raise ApiError(400, "that response is still being generated", param="previous_response_id")
        return given, previous.conversation()

    async def count_input(self, request: HttpRequest) -> HttpResponse:
        asked = await read_body(request, InputTokensRequest, self.service.config.server)
        self.service.check_model(asked.model)
        check_supported(asked)
        given, history = self.read_input(asked, owner_of(request.scope))
        toolbox = open_toolbox(asked, [*history, *given])
        try:
            messages = await self.chat.render(as_chat(asked, [*history, *given], toolbox))
            prompt = await self.service.encode_chat(messages)
        except ApiError as error:
            raise name_field(error, toolbox) from None
        return json_response(InputTokens(input_tokens=len(prompt)))

    async def refuse_compaction(self, request: HttpRequest) -> HttpResponse:
        raise ApiError(
            400,
            "compaction is not available here: send a shorter input, such as a summary that the model wrote",
            code="unsupported_operation",
        )

    def spell(self, piece: ChoicePiece) -> list[TokenLogprob]:
        return spell_all(piece.logprobs, self.service.tokenizer)

    async def whole(self, job: ResponseJob) -> HttpResponse:
        async with aclosing(self.service.run(job.turn.choices, job.turn.entry)) as pieces:
            async for _, piece in pieces:
                job.writer.push(piece)
        job.writer.finish(count_usage(job.choice))
        self.keep(job)
        return json_response(job.writer.response)

    async def stream(self, job: ResponseJob, request: HttpRequest) -> AsyncGenerator[bytes, None]:
        """Begins with the first piece: an error before it is an HTTP error."""
        writer, is_begun = job.writer, False
        try:
            with panics_as_faults():
                async with aclosing(self.service.run(job.turn.choices, job.turn.entry)) as pieces:
                    async for _, piece in pieces:
                        events = writer.push(piece) if is_begun else [*writer.begin(), *writer.push(piece)]
                        is_begun = True
                        for new in events:
                            yield event(new, new.type)
                last = writer.finish(count_usage(job.choice))
        except Exception as error:
            if not is_begun:
                raise
            note_error(request.scope, error)
            last = note_failure(writer, error)
        self.keep(job)
        for new in last:
            yield event(new, new.type)

    def keep(self, job: ResponseJob) -> None:
        if job.stored is not None:
            self.store.put(job.stored)

    async def find(self, request: HttpRequest) -> HttpResponse:
        stored = self.store.get(request.path_params["name"], owner_of(request.scope))
        begin = read_start(request.query_params)
        if begin is None:
            return json_response(stored.response)
        events = send_all(replay(stored.response)[begin:]) if stored.log is None else stored.log.follow(begin)
        return EventStream(events, self.service.config.server)

    async def delete(self, request: HttpRequest) -> HttpResponse:
        name, owner = request.path_params["name"], owner_of(request.scope)
        await self.background.end(name, owner)
        self.store.delete(name, owner)
        return json_response(DeletedResponse(id=name))

    async def cancel(self, request: HttpRequest) -> HttpResponse:
        name, owner = request.path_params["name"], owner_of(request.scope)
        stored = self.store.get(name, owner)
        if not stored.response.background:
            raise ApiError(400, "only a background response can be cancelled; close a stream instead")
        await self.background.end(name, owner)
        return json_response(stored.response)

    async def list_input(self, request: HttpRequest) -> HttpResponse:
        stored = self.store.get(request.path_params["name"], owner_of(request.scope))
        return json_response(list_items([*stored.history, *stored.given], request.query_params))


def read_start(query: QueryParams) -> int | None:
    """Returns the number of the first event that a client wants, or None if it wants no stream."""
    after = query.get("starting_after")
    if query.get("stream", "").lower() != "true":
        if after is not None:
            raise ApiError(400, "starting_after needs stream=true", param="starting_after")
        return None
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit() and len(after) < 10):
        raise ApiError(400, "starting_after must be the sequence number of an event", param="starting_after")
    return int(after) + 1


async def send_all(events: Sequence[Event]) -> AsyncGenerator[bytes, None]:
    for each in events:
        yield event(each, each.type)
