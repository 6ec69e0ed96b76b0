"""Builds constraints on an answer: a pattern, a list of texts, or a grammar of the client's own.

Each matches the whole answer. JSON schemas are constraints too: see `constrain_json` in grammar.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from firesteel.chat.grammar import Constraint
from firesteel.chat.text_rule import lark_rule, regex_rule


def constrain_regex(pattern: str, *, name: str) -> Constraint:
    """Builds the constraint of a pattern in the syntax of Rust's regex: no look-around, no back-references."""
    return Constraint(name=name, rule=regex_rule(pattern))


def constrain_choice(texts: Sequence[str], *, name: str) -> Constraint:
    """Builds the constraint of a list of texts, of which the answer is one."""
    return Constraint(name=name, rule=" | ".join(map(json.dumps, texts)))


def constrain_grammar(lark: str, *, name: str) -> Constraint:
    """Builds the constraint of a grammar in llguidance's dialect of Lark, whose first rule is `start`."""
    return Constraint(name=name, rule=lark_rule(lark))


def is_gbnf(grammar: str) -> bool:
    """Returns whether a grammar is written in GBNF, the EBNF of llama.cpp and XGrammar, and not in Lark."""
    return re.search(r"^[ \t]*[\w-]+[ \t]*::=", grammar, re.MULTILINE) is not None
