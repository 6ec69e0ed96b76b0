"""The endpoints under /v1/responses: create (whole, streamed or in the background), get, delete, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse

from firesteel.server.chat.answer import spell_all
from firesteel.server.chat.endpoint import Chat, ChatTurn
from firesteel.server.generate.choice import Choice, ChoicePiece
from firesteel.server.http.body import MIB, read_body
from firesteel.server.http.errors import (
    ApiError,
    as_api_error,
    json_response,
    log_fault,
    note_error,
    panics_as_faults,
)
from firesteel.server.http.keys import owner_of
from firesteel.server.http.route import GENERATES, ApiRoute
from firesteel.server.http.sse import Computed, EventStream, event, while_client_waits
from firesteel.server.observe.access_log import LogEntry, entry_of
from firesteel.server.openai.answers import TokenLogprob
from firesteel.server.openai.requests import TextFormat
from firesteel.server.responses.answers import (
    DeletedResponse,
    Event,
    InputDetails,
    InputItemList,
    OutputDetails,
    Response,
    ResponseUsage,
)
from firesteel.server.responses.input import as_chat, check_supported, read_items
from firesteel.server.responses.output import ResponseWriter, new_name
from firesteel.server.responses.schema import Item, Reasoning, ResponseRequest, TextOptions
from firesteel.server.responses.store import ResponseStore, Stored, complete_items, list_items
from firesteel.server.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseJob:
    """A response to generate."""

    turn: ChatTurn
    owner: str  # who asked for it
    writer: ResponseWriter
    stored: Stored | None  # None if it is not kept

    @property
    def choice(self) -> Choice:
        """The only choice of the turn."""
        return self.turn.choices[0]


class Responses:
    def __init__(self, service: Service, chat: Chat) -> None:
        self.service = service
        self.chat = chat
        self.store = ResponseStore(int(service.config.server.response_store_mib * MIB))
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}  # background responses, by owner and name

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
            ApiRoute(path=path, answer=self.find, says="A stored response", gives=Response, errors=(400, *known)),
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
            return self.start(job)
        if asked.stream:
            return EventStream(self.stream(job, request), config)
        return Computed(lambda: self.whole(job), config)

    async def prepare(self, asked: ResponseRequest, entry: LogEntry, owner: str) -> ResponseJob:
        check_supported(asked)
        given = read_items(asked)
        history: list[Item] = []
        if asked.previous_response_id is not None:
            previous = self.store.find_previous(asked.previous_response_id, owner)
            if previous.response.status in ("queued", "in_progress"):
                raise ApiError(400, "that response is still being generated", param="previous_response_id")
            history = previous.conversation()
        try:
            turn = await self.chat.prepare(as_chat(asked, [*history, *given]), entry, owner)
        except ApiError as error:
            raise name_field(error) from None
        response = describe(asked, turn, created=self.service.now())
        stored = Stored(response, history, complete_items(given), owner) if response.store else None
        wants_logprobs = bool(turn.asked.logprobs)
        return ResponseJob(
            turn=turn,
            owner=owner,
            stored=stored,
            writer=ResponseWriter(response, self.spell if wants_logprobs else None),
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
            last = self.note_failure(writer, error)
        self.keep(job)
        for new in last:
            yield event(new, new.type)

    def start(self, job: ResponseJob) -> HttpResponse:
        """Starts the response in the background; the answer holds its id and status only."""
        response = job.writer.response
        self.service.check_ready()
        self.service.admission.check_room()
        self.keep(job)
        name = (job.owner, response.id)
        task = self._tasks[name] = asyncio.create_task(self.work(job))
        task.add_done_callback(lambda _: self._tasks.pop(name, None))
        return json_response(response)

    async def work(self, job: ResponseJob) -> None:
        try:
            with panics_as_faults():
                async with asyncio.timeout(self.service.config.server.request_timeout_s or None):
                    await self.whole(job)
        except Exception as error:
            self.note_failure(job.writer, error)
            self.keep(job)
        except asyncio.CancelledError:
            job.writer.cancel()
            self.keep(job)

    def note_failure(self, writer: ResponseWriter, error: Exception) -> list[Event]:
        log_fault(error)
        shown = as_api_error(error)
        return writer.fail(shown.code or "server_error", str(shown))

    def keep(self, job: ResponseJob) -> None:
        if job.stored is not None:
            self.store.put(job.stored)

    async def find(self, request: HttpRequest) -> HttpResponse:
        if request.query_params.get("stream", "").lower() == "true":
            raise ApiError(400, "a stored response cannot be streamed", param="stream")
        return json_response(self.store.get(request.path_params["name"], owner_of(request.scope)).response)

    async def delete(self, request: HttpRequest) -> HttpResponse:
        name, owner = request.path_params["name"], owner_of(request.scope)
        await self.end(name, owner)
        self.store.delete(name, owner)
        return json_response(DeletedResponse(id=name))

    async def cancel(self, request: HttpRequest) -> HttpResponse:
        name, owner = request.path_params["name"], owner_of(request.scope)
        stored = self.store.get(name, owner)
        if not stored.response.background:
            raise ApiError(400, "only a background response can be cancelled; close a stream instead")
        await self.end(name, owner)
        return json_response(stored.response)

    async def end(self, name: str, owner: str) -> None:
        task = self._tasks.get((owner, name))
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def list_input(self, request: HttpRequest) -> HttpResponse:
        stored = self.store.get(request.path_params["name"], owner_of(request.scope))
        return json_response(list_items([*stored.history, *stored.given], request.query_params))


def name_field(error: ApiError) -> ApiError:
    """Renames the field of a chat request to its name in a response request."""
    if error.param is not None:
        error.param = (
            error.param.replace("messages", "input")
            .replace(".function.", ".")
            .replace("tool_call_id", "call_id")
            .replace("response_format.json_schema", "text.format")
            .replace("response_format", "text.format")
        )
    return error


def describe(asked: ResponseRequest, turn: ChatTurn, *, created: int) -> Response:
    """Returns the response before anything is generated: the request's fields and the defaults that apply."""
    params = turn.params
    reasoning, text = asked.reasoning or Reasoning(), asked.text or TextOptions()
    return Response(
        id=new_name("resp"),
        created_at=created,
        model=turn.model,
        status="in_progress",
        tools=asked.tools or [],
        tool_choice=asked.tool_choice or "auto",
        text=msgspec.structs.replace(text, format=text.format or TextFormat()),
        reasoning=msgspec.structs.replace(reasoning, effort=reasoning.effort or "medium"),
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        store=asked.store is not False,
        temperature=params.temperature,
        top_p=params.top_p,
        top_logprobs=asked.top_logprobs or 0,
        truncation=asked.truncation or "disabled",
        background=bool(asked.background),
        instructions=asked.instructions,
        max_output_tokens=asked.max_output_tokens,
        max_tool_calls=asked.max_tool_calls,
        metadata=asked.metadata or {},
        previous_response_id=asked.previous_response_id,
        user=asked.user,
    )


def count_usage(choice: Choice) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=choice.num_prompt,
        input_tokens_details=InputDetails(cached_tokens=choice.num_cached),
        output_tokens=choice.num_output,
        output_tokens_details=OutputDetails(reasoning_tokens=choice.num_reasoning),
        total_tokens=choice.num_prompt + choice.num_output,
    )
