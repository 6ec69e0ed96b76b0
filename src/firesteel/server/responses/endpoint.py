"""The endpoints under /v1/responses: made whole, streamed or in the background, kept, found, deleted, cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse

from firesteel.errors import EngineDied, UserError
from firesteel.server.chat.answer import spell_all
from firesteel.server.chat.endpoint import Chat, Turn
from firesteel.server.generate.choice import Piece, Tally
from firesteel.server.http.body import MIB, read_body
from firesteel.server.http.errors import ApiError, as_api_error, json_response, note_error
from firesteel.server.http.route import GENERATES, Path
from firesteel.server.http.sse import Computed, EventStream, event
from firesteel.server.observe.access_log import Entry, entry_of
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

FAILURES = (ApiError, UserError, EngineDied, TimeoutError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A response that is to be made."""

    turn: Turn
    writer: ResponseWriter
    stored: Stored | None  # where it is kept, if it is

    @property
    def tally(self) -> Tally:
        return self.turn.readers[0].tally


class Responses:
    def __init__(self, service: Service, chat: Chat) -> None:
        self.service = service
        self.chat = chat
        self.store = ResponseStore(int(service.config.server.response_store_mib * MIB))
        self._tasks: dict[str, asyncio.Task[None]] = {}  # responses made in the background, by name

    def paths(self) -> list[Path]:
        one, known = "/v1/responses/{name}", (401, 404)
        return [
            Path(
                path="/v1/responses", answer=self.create, says="Answer a list of items", takes=ResponseRequest,
                gives=Response, streams=True, errors=GENERATES,
            ),
            Path(path=one, answer=self.find, says="A response that was kept", gives=Response, errors=(400, *known)),
            Path(
                path=one, verb="DELETE", answer=self.delete, says="Keep it no longer", gives=DeletedResponse,
                errors=known,
            ),
            Path(
                path=f"{one}/cancel", verb="POST", answer=self.cancel, says="End one made in the background",
                gives=Response, errors=(400, *known),
            ),
            Path(
                path=f"{one}/input_items", answer=self.list_input, says="What it was asked", gives=InputItemList,
                errors=(400, *known),
            ),
        ]  # fmt: skip

    async def create(self, request: HttpRequest) -> HttpResponse:
        config = self.service.config.server
        asked = await read_body(request, ResponseRequest, config)
        job = await self.prepare(asked, entry_of(request.scope))
        if asked.background:
            return self.start(job)
        if asked.stream:
            return EventStream(self.stream(job, request), config)
        return Computed(lambda: self.whole(job), config)

    async def prepare(self, asked: ResponseRequest, entry: Entry) -> Job:
        check_supported(asked)
        given = read_items(asked)
        history: list[Item] = []
        if asked.previous_response_id is not None:
            previous = self.store.find_previous(asked.previous_response_id)
            if previous.response.status in ("queued", "in_progress"):
                raise ApiError(400, "that response is still being made", param="previous_response_id")
            history = previous.conversation()
        try:
            turn = await self.chat.prepare(as_chat(asked, [*history, *given]), entry)
        except ApiError as error:
            raise name_field(error) from None
        response = describe(asked, turn, created=self.service.now())
        stored = Stored(response, history, complete_items(given)) if response.store else None
        wants_logprobs = bool(turn.asked.logprobs)
        return Job(
            turn=turn, stored=stored, writer=ResponseWriter(response, self.spell if wants_logprobs else None)
        )

    def spell(self, piece: Piece) -> list[TokenLogprob]:
        return spell_all(piece.logprobs, self.service.tokenizer)

    async def whole(self, job: Job) -> HttpResponse:
        async with aclosing(self.service.run(job.turn.requests, job.turn.readers, job.turn.entry)) as pieces:
            async for _, piece in pieces:
                job.writer.push(piece)
        job.writer.finish(count_usage(job.tally))
        self.keep(job)
        return json_response(job.writer.response)

    async def stream(self, job: Job, request: HttpRequest) -> AsyncGenerator[bytes, None]:
        """Begins with the first piece: what is refused before it is an HTTP error."""
        writer, is_begun = job.writer, False
        try:
            async with aclosing(self.service.run(job.turn.requests, job.turn.readers, job.turn.entry)) as pieces:
                async for _, piece in pieces:
                    made = writer.push(piece) if is_begun else [*writer.begin(), *writer.push(piece)]
                    is_begun = True
                    for one in made:
                        yield event(one, one.type)
            last = writer.finish(count_usage(job.tally))
        except FAILURES as error:
            if not is_begun:
                raise
            note_error(request.scope, error)
            last = self.note_failure(writer, error)
        self.keep(job)
        for one in last:
            yield event(one, one.type)

    def start(self, job: Job) -> HttpResponse:
        """In the background: the answer says only where to find it."""
        response = job.writer.response
        self.service.check_ready()
        self.service.admission.check_room()
        self.keep(job)
        task = self._tasks[response.id] = asyncio.create_task(self.work(job))
        task.add_done_callback(lambda _: self._tasks.pop(response.id, None))
        return json_response(response)

    async def work(self, job: Job) -> None:
        try:
            async with asyncio.timeout(self.service.config.server.request_timeout_s or None):
                await self.whole(job)
        except FAILURES as error:
            self.note_failure(job.writer, error)
            self.keep(job)
        except asyncio.CancelledError:
            job.writer.cancel()
            self.keep(job)

    def note_failure(self, writer: ResponseWriter, error: Exception) -> list[Event]:
        told = as_api_error(error)
        return writer.fail(told.code or "server_error", str(told))

    def keep(self, job: Job) -> None:
        if job.stored is not None:
            self.store.put(job.stored)

    async def find(self, request: HttpRequest) -> HttpResponse:
        if request.query_params.get("stream", "").lower() == "true":
            raise ApiError(400, "a response that was made cannot be streamed again", param="stream")
        return json_response(self.store.get(request.path_params["name"]).response)

    async def delete(self, request: HttpRequest) -> HttpResponse:
        name = request.path_params["name"]
        await self.end(name)
        self.store.delete(name)
        return json_response(DeletedResponse(id=name))

    async def cancel(self, request: HttpRequest) -> HttpResponse:
        name = request.path_params["name"]
        stored = self.store.get(name)
        if not stored.response.background:
            raise ApiError(400, "only a response made in the background can be cancelled; close a stream instead")
        await self.end(name)
        return json_response(stored.response)

    async def end(self, name: str) -> None:
        task = self._tasks.get(name)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def list_input(self, request: HttpRequest) -> HttpResponse:
        stored = self.store.get(request.path_params["name"])
        return json_response(list_items([*stored.history, *stored.given], request.query_params))


def name_field(error: ApiError) -> ApiError:
    """A chat's fields by the names that they have here."""
    if error.param is not None:
        error.param = (
            error.param.replace("messages", "input").replace(".function.", ".").replace("tool_call_id", "call_id")
        )
    return error


def describe(asked: ResponseRequest, turn: Turn, *, created: int) -> Response:
    """The response before anything is made: what was asked, with the defaults that apply."""
    params = turn.requests[0].params
    reasoning, text = asked.reasoning or Reasoning(), asked.text or TextOptions()
    return Response(
        id=new_name("resp"), created_at=created, model=turn.model, status="in_progress", tools=asked.tools or [],
        tool_choice=asked.tool_choice or "auto",
        text=msgspec.structs.replace(text, format=text.format or TextFormat()),
        reasoning=msgspec.structs.replace(reasoning, effort=reasoning.effort or "medium"),
        parallel_tool_calls=asked.parallel_tool_calls is not False, store=asked.store is not False,
        temperature=params.temperature, top_p=params.top_p, top_logprobs=asked.top_logprobs or 0,
        truncation=asked.truncation or "disabled", background=bool(asked.background),
        instructions=asked.instructions, max_output_tokens=asked.max_output_tokens,
        max_tool_calls=asked.max_tool_calls, metadata=asked.metadata or {},
        previous_response_id=asked.previous_response_id, user=asked.user,
    )  # fmt: skip


def count_usage(tally: Tally) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=tally.num_prompt, input_tokens_details=InputDetails(cached_tokens=tally.num_cached),
        output_tokens=tally.num_output,
        output_tokens_details=OutputDetails(reasoning_tokens=tally.num_reasoning),
        total_tokens=tally.num_prompt + tally.num_output,
    )  # fmt: skip
