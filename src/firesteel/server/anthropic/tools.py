"""Tools of a request as those of a chat."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from firesteel.server.anthropic.schema import AnthropicTool, AnyChoice, NoChoice, PromptRequest, ToolChoice
from firesteel.server.http.errors import ApiError
from firesteel.server.openai.requests import FunctionSpec, NamedChoice, NamedFunction, ToolSpec

log = logging.getLogger(__name__)


def read_tools(tools: Sequence[AnthropicTool]) -> list[ToolSpec]:
    """Returns the custom tools. Others need Anthropic's servers or models: they are left out beside custom ones."""
    others = [tool.type for tool in tools if not tool.is_custom]
    if others and len(others) == len(tools):
        raise ApiError(
            400,
            f"tools: only custom tools can be called here, not {', '.join(map(repr, others[:8]))}: give a custom "
            "tool with an input_schema, or leave tools out",
            param="tools",
        )
    if others:
        log.warning("tools left out: only custom tools can be called here", extra={"tools": others[:8]})
    return [_as_chat_tool(tool, number) for number, tool in enumerate(tools) if tool.is_custom]


def find_places(tools: Sequence[AnthropicTool]) -> list[int]:
    """Returns the index that each of the chat's tools has in the request."""
    return [number for number, tool in enumerate(tools) if tool.is_custom]


def _as_chat_tool(tool: AnthropicTool, number: int) -> ToolSpec:
    if tool.input_schema is None:
        place = f"tools[{number}].input_schema"
        raise ApiError(400, f"{place}: required for a custom tool", param=place)
    return ToolSpec(
        function=FunctionSpec(
            name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
        )
    )


def read_choice(asked: PromptRequest) -> Literal["none", "auto", "required"] | NamedChoice | None:
    match asked.tool_choice:
        case None:
            return None
        case AnyChoice():
            return "required"
        case NoChoice():
            return "none"
        case ToolChoice(name=name):
            return NamedChoice(function=NamedFunction(name=name))
    return "auto"


def may_call_in_parallel(asked: PromptRequest) -> bool:
    return not getattr(asked.tool_choice, "disable_parallel_tool_use", None)
