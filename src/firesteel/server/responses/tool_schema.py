"""Tools of /v1/responses as types: those of requests, and those that an answer shows.

A tool may omit its type, and hosted tools have many fields that are not read here. So all tools of a request are
one type, and `toolbox.py` checks which fields a kind needs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from firesteel.server.openai.limits import MAX_DEFINITION_CHARACTERS, MAX_TOOLS
from firesteel.server.openai.requests import Body, Name

HostedKind = Literal[
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
]
ToolKind = Literal["function", "custom", "namespace"] | HostedKind
HOSTED = frozenset(get_args(HostedKind))
Definition = Annotated[str, Meta(min_length=1, max_length=MAX_DEFINITION_CHARACTERS)]


class AnyText(Body, tag_field="type", tag="text"):
    pass


class GrammarText(Body, tag_field="type", tag="grammar"):
    """Text that a grammar of Lark, in the dialect of llguidance, or a regular expression describes."""

    syntax: Literal["lark", "regex"]
    definition: Definition


class InnerTool(Body):
    """A tool in a namespace."""

    name: Name
    type: Literal["function", "custom"] = "function"
    description: str | None = None
    parameters: dict[str, Any] | None = None  # of a function
    strict: bool | None = None  # of a function
    format: AnyText | GrammarText | None = None  # of a custom tool


class ToolEntry(Body):
    """A function, a custom tool, a namespace, or a tool that OpenAI hosts."""

    type: ToolKind = "function"
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None  # of a function
    strict: bool | None = None  # of a function
    format: AnyText | GrammarText | None = None  # of a custom tool
    tools: Annotated[list[InnerTool], Meta(min_length=1, max_length=MAX_TOOLS)] | None = None  # of a namespace


SomeTools = Annotated[list[ToolEntry], Meta(max_length=MAX_TOOLS)]


class FunctionTool(Body, tag_field="type", tag="function"):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomTool(Body, tag_field="type", tag="custom"):
    name: str
    format: AnyText | GrammarText
    description: str | None = None


class NamespaceTool(Body, tag_field="type", tag="namespace"):
    name: str
    tools: list[FunctionTool | CustomTool]
    description: str | None = None


ShownTool = FunctionTool | CustomTool | NamespaceTool
