"""Help pages in plain text: names on the left, what they mean on the right; flags are never cut in two."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Any

FURTHER = "Further "  # first word of the panels that only --help-all shows
LEFT = 28  # columns of the names; a longer name has a line of its own
GAP = 2
LEAST = 20  # columns of the text on a very narrow terminal
KINDS = {"str": "TEXT", "list[str]": "TEXT", "int": "N", "list[int]": "N", "float": "X", "path": "PATH"}


def write_paragraphs(formatter: Any, text: str) -> None:
    """Writes a docstring: each paragraph is filled anew."""
    for paragraph in text.strip().split("\n\n"):
        formatter.write("\n")
        for line in _wrap(paragraph, formatter.width - GAP):
            formatter.write(f"{' ' * GAP}{line}\n")


def write_example(formatter: Any, line: str) -> None:
    formatter.write(f"\n{' ' * GAP}Example: {line}\n")


def write_panel(formatter: Any, title: str, rows: Iterable[tuple[str, str]], *, left: int = LEFT) -> None:
    formatter.write(f"\n{title}:\n")
    for name, text in rows:
        lines = _wrap(text, formatter.width - left - 2 * GAP)
        if len(name) > left:
            formatter.write(f"{' ' * GAP}{name}\n")
        else:
            first = lines.pop(0) if lines else ""
            formatter.write(f"{' ' * GAP}{name:{left}}{' ' * GAP}{first}".rstrip() + "\n")
        for line in lines:
            formatter.write(f"{' ' * (left + 2 * GAP)}{line}\n")


def describe(parameter: Any, ctx: Any) -> tuple[str, str] | None:
    """Returns the names of a parameter with the kind of its value, and its help; None if it is hidden."""
    record = parameter.get_help_record(ctx)
    if record is None:
        return None
    name, text = record
    kinds = {} if parameter.param_type_name == "argument" else KINDS
    name = re.sub(r"<(.*?)( range)?>", lambda kind: kinds.get(kind[1], ""), name)
    return name.rstrip(), re.sub(r" +\[(.*)\]$", r" (\1)", text)  # [default: 3] as in our own texts


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, LEAST), break_on_hyphens=False, break_long_words=False)
