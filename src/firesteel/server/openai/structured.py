"""Constraints on answers as vLLM's requests state them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firesteel.server.openai.limits import MAX_CHOICES, MAX_GRAMMAR_CHARACTERS, MAX_PATTERN_CHARACTERS

Pattern = Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN_CHARACTERS)]
Choices = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)]],
    Meta(min_length=1, max_length=MAX_CHOICES),
]
GrammarText = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)]


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A constraint on the answer. Exactly one of the first five; the others are options of `json`."""

    json: dict[str, Any] | Annotated[str, Meta(min_length=1)] | None = None
    json_object: bool | None = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None  # in Lark or GBNF
    whitespace_pattern: Pattern | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    disable_fallback: bool | None = None  # llguidance is the only backend
    structural_tag: Literal[""] | None = None  # tags are not enforced
