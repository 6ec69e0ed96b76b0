"""A response to generate: the chat turn that answers it, and the answer that is being written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from firesteel.server.chat.endpoint import ChatTurn
from firesteel.server.generate.choice import Choice
from firesteel.server.http.errors import ApiError
from firesteel.server.openai.requests import TextFormat
from firesteel.server.responses.answers import InputDetails, OutputDetails, Response, ResponseUsage
from firesteel.server.responses.event_log import EventLog
from firesteel.server.responses.output import ResponseWriter, new_name
from firesteel.server.responses.schema import Reasoning, ResponseRequest, TextOptions
from firesteel.server.responses.store import Stored
from firesteel.server.responses.toolbox import Toolbox


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseJob:
    turn: ChatTurn
    owner: str  # who asked for it
    writer: ResponseWriter
    stored: Stored | None  # None if it is not kept
    log: EventLog = field(default_factory=EventLog)  # events of a background response

    @property
    def choice(self) -> Choice:
        """The only choice of the turn."""
        return self.turn.choices[0]


def describe(asked: ResponseRequest, turn: ChatTurn, toolbox: Toolbox, *, created: int) -> Response:
    """Returns the response before anything is generated: the request's fields and the defaults that apply."""
    params = turn.params
    reasoning, text = asked.reasoning or Reasoning(), asked.text or TextOptions()
    return Response(
        id=new_name("resp"),
        created_at=created,
        model=turn.model,
        status="in_progress",
        tools=toolbox.shown,
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


def name_field(error: ApiError, toolbox: Toolbox) -> ApiError:
    """Renames the field of a chat request to its name in a response request."""

    def place_of(found: re.Match[str]) -> str:
        return toolbox.offered[int(found[1])].place

    if error.param is not None:
        error.param = (
            re.sub(r"^tools\[(\d+)\]", place_of, error.param)
            .replace("messages", "input")
            .replace(".function.", ".")
            .replace("tool_call_id", "call_id")
            .replace("response_format.json_schema", "text.format")
            .replace("response_format", "text.format")
        )
    return error
