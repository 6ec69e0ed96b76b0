"""Builds constraints on an answer: a pattern, a list of texts, or a grammar of the client's own.

Each matches the whole answer. JSON schemas are constraints too: see `constrain_json` in grammar.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from firesteel.chat.grammar import Constraint

_SLASH_OR_ESCAPE = re.compile(r"\\.|/|[\n\r]", re.DOTALL)
_LINE_ENDS = {"\n": r"\n", "\r": r"\r"}


def constrain_regex(pattern: str, *, name: str) -> Constraint:
    """Builds the constraint of a pattern in the syntax of Rust's regex: no look-around, no back-references."""
    return Constraint(name=name, rule=f"/{_SLASH_OR_ESCAPE.sub(_escape, _drop_anchors(pattern))}/")


def constrain_choice(texts: Sequence[str], *, name: str) -> Constraint:
    """Builds the constraint of a list of texts, of which the answer is one."""
    return Constraint(name=name, rule=" | ".join(map(json.dumps, texts)))


def constrain_grammar(lark: str, *, name: str) -> Constraint:
    """Builds the constraint of a grammar in llguidance's dialect of Lark, whose first rule is `start`."""
    return Constraint(name=name, rule=f"%lark {{\n{lark}\n}}")


def is_gbnf(grammar: str) -> bool:
    """Returns whether a grammar is written in GBNF, the EBNF of llama.cpp and XGrammar, and not in Lark."""
    return re.search(r"^[ \t]*[\w-]+[ \t]*::=", grammar, re.MULTILINE) is not None


def _drop_anchors(pattern: str) -> str:
    """Drops the anchors at both ends, which say nothing about a match of the whole text."""
    num_escapes = len(pattern[:-1]) - len(pattern[:-1].rstrip("\\"))
    if pattern.endswith("$") and num_escapes % 2 == 0:
        pattern = pattern[:-1]
    return pattern.removeprefix("^")


def _escape(found: re.Match[str]) -> str:
    """Escapes a slash, which would end the pattern, and line ends, which would end the rule."""
    last = found[0][-1]
    if last in _LINE_ENDS:
        return _LINE_ENDS[last]
    return found[0] if len(found[0]) > 1 else r"\/"
