"""The tools that a response may call: namespaces flattened, hosted tools left out.

The model sees one list of functions. A tool `close` of the namespace `agents` is `agents__close` there, and calls
get both names back apart, as clients expect them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from firesteel.chat.tools import TextRule
from firesteel.server.http.errors import ApiError
from firesteel.server.openai import requests as chat
from firesteel.server.openai.limits import MAX_TOOLS
from firesteel.server.responses.schema import AllowedTools, Item, ResponseRequest
from firesteel.server.responses.tool_schema import (
    HOSTED,
    AnyText,
    CustomTool,
    FunctionTool,
    GrammarText,
    InnerTool,
    NamespaceTool,
    ShownTool,
    ToolEntry,
)

log = logging.getLogger(__name__)
JOINT = "__"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A function or a custom tool."""

    name: str
    namespace: str | None
    is_custom: bool
    spec: chat.ToolSpec  # for the model, under its flat name
    place: str  # in the request: "tools[4].tools[0]"


@dataclass(frozen=True, slots=True)
class Toolbox:
    offered: tuple[OfferedTool, ...] = ()
    shown: tuple[ShownTool, ...] = ()
    _by_name: Mapping[str, OfferedTool] = field(default_factory=dict)

    def find(self, flat_name: str) -> OfferedTool | None:
        """Returns the tool that the model called, or None if it made up a name."""
        return self._by_name.get(flat_name)


def flatten(name: str, namespace: str | None) -> str:
    if not namespace:
        return name
    return f"{namespace}{'' if namespace.endswith(JOINT) else JOINT}{name}"


def open_toolbox(asked: ResponseRequest, items: Sequence[Item]) -> Toolbox:
    """Collects the tools of the request and of its items, and keeps those that may be called."""
    entries = [(f"tools[{number}]", entry) for number, entry in enumerate(asked.tools or ())]
    for number, item in enumerate(items):
        inner = enumerate(item.tools or ()) if item.type == "additional_tools" else ()
        entries += [(f"input[{number}].tools[{index}]", entry) for index, entry in inner]
    count = sum(len(entry.tools or ()) if entry.type == "namespace" else 1 for _, entry in entries)
    if count > MAX_TOOLS:
        raise ApiError(400, f"{count} tools, those in namespaces included; at most {MAX_TOOLS}", param="tools")
    hosted = [(place, entry.type) for place, entry in entries if entry.type in HOSTED]
    offered: list[OfferedTool] = []
    for place, entry in entries:
        if entry.type not in HOSTED:
            offered += read_entry(entry, place)
    if hosted and not offered:
        place, kind = hosted[0]
        raise ApiError(
            400,
            f"{place}: tools of type {kind} are run by OpenAI and not available here; give functions",
            param=f"{place}.type",
            code="unsupported_tool",
        )
    if hosted:
        log.warning("hosted tools left out", extra={"types": sorted({kind for _, kind in hosted})})
    offered = choose(offered, asked)
    names = {f"{tool.namespace}.{tool.name}": tool for tool in offered if tool.namespace}
    names |= {tool.spec.function.name: tool for tool in offered}
    shown = tuple(show(entry) for entry in asked.tools or () if entry.type not in HOSTED)
    return Toolbox(tuple(offered), shown, names)


def read_entry(entry: ToolEntry, place: str) -> list[OfferedTool]:
    if entry.name is None:
        raise missing(f"{place}.name", entry.type)
    if entry.type != "namespace":
        return [offer(as_inner(entry), place)]
    if entry.tools is None:
        raise missing(f"{place}.tools", entry.type)
    return [
        offer(tool, f"{place}.tools[{number}]", entry.name, entry.description if number == 0 else None)
        for number, tool in enumerate(entry.tools)
    ]


def missing(place: str, kind: str) -> ApiError:
    return ApiError(400, f"{place}: required for a tool of type {kind}", param=place, code="invalid_value")


def as_inner(entry: ToolEntry) -> InnerTool:
    return InnerTool(
        name=entry.name or "",
        type="custom" if entry.type == "custom" else "function",
        description=entry.description,
        parameters=entry.parameters,
        strict=entry.strict,
        format=entry.format,
    )


def offer(tool: InnerTool, place: str, namespace: str | None = None, about: str | None = None) -> OfferedTool:
    """`about` describes the namespace, before its first tool."""
    texts = [f"Namespace {namespace}: {about}" if about else None, tool.description]
    name, description = flatten(tool.name, namespace), "\n".join(filter(None, texts)) or None
    function: chat.FunctionSpec
    if tool.type == "custom":
        function = chat.TextFunctionSpec(name=name, description=description, text=read_format(tool.format))
    else:
        function = chat.FunctionSpec(
            name=name, description=description, parameters=tool.parameters, strict=tool.strict
        )
    return OfferedTool(
        name=tool.name,
        namespace=namespace,
        is_custom=tool.type == "custom",
        spec=chat.ToolSpec(function=function),
        place=place,
    )


def read_format(given: AnyText | GrammarText | None) -> TextRule:
    if isinstance(given, GrammarText):
        return TextRule(syntax=given.syntax, definition=given.definition)
    return TextRule()


def choose(offered: Sequence[OfferedTool], asked: ResponseRequest) -> list[OfferedTool]:
    """Keeps the tools that `tool_choice` allows."""
    choice = asked.tool_choice
    if not isinstance(choice, AllowedTools):
        return list(offered)
    names = {flatten(tool.name, tool.namespace) for tool in choice.tools if tool.name is not None}
    known = {tool.spec.function.name for tool in offered}
    if unknown := sorted(names - known):
        raise ApiError(400, f"tool_choice allows {unknown[0]}, which is not in tools", param="tool_choice")
    if not names:
        raise ApiError(
            400, "tool_choice allows hosted tools only, which are not available here", param="tool_choice"
        )
    return [tool for tool in offered if tool.spec.function.name in names]


def show(entry: ToolEntry) -> ShownTool:
    """Returns the tool as an answer repeats it."""
    if entry.type == "namespace":
        tools = [show_inner(tool) for tool in entry.tools or ()]
        return NamespaceTool(name=entry.name or "", description=entry.description, tools=tools)
    return show_inner(as_inner(entry))


def show_inner(tool: InnerTool) -> FunctionTool | CustomTool:
    if tool.type == "custom":
        return CustomTool(name=tool.name, description=tool.description, format=tool.format or AnyText())
    return FunctionTool(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
