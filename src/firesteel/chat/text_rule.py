"""Rules of text that a client describes itself, as bodies of rules in llguidance's dialect of Lark."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\.|.", re.DOTALL)  # of a regular expression: an escaped character, or any other
_ESCAPES = {"/": r"\/", "\n": r"\n", "\r": r"\r", "\\\n": r"\n", "\\\r": r"\r"}
ANY_TEXT = r"/(.|\n)*/"


def lark_rule(grammar: str) -> str:
    """Returns the rule of a grammar, whose first rule is `start`."""
    return f"%lark {{\n{grammar}\n}}"


def regex_rule(pattern: str) -> str:
    """Returns the rule of a pattern that the whole text must match, so anchors at its ends say nothing.

    Slashes would end the pattern, and newlines its line.
    """
    tokens = _TOKEN.findall(pattern)
    tokens = tokens[tokens[:1] == ["^"] :]
    tokens = tokens[:-1] if tokens[-1:] == ["$"] else tokens
    # Two slashes would begin a comment.
    return f"/{''.join(_ESCAPES.get(token, token) for token in tokens)}/" if tokens else '""'
