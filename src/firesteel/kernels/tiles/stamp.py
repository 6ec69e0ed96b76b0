"""A stamp of the Triton sources: measured tiles are valid for the device code that they were measured with.

Imports, comments, docstrings and layout do not count, so that moving or formatting a file leaves the stamp alone.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

DEVICE_CODE = Path(__file__).parents[1] / "triton"
Position = tuple[int, int]  # row and column, as tokens have them
UNREAD = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
LAYOUT = {tokenize.NEWLINE: "\n", tokenize.INDENT: "{", tokenize.DEDENT: "}"}


@functools.cache
def hash_kernels() -> str:
    """Returns the stamp of all Triton sources of the package."""
    digest = hashlib.sha256()
    for path in sorted(DEVICE_CODE.glob("*.py")):
        digest.update(read_code(path.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()[:16]


def read_code(text: str) -> str:
    """Returns the tokens of `text` that count, the same under every version of Python.

    A dump of the syntax tree would differ between versions, and so would the tokens inside an f-string, which are
    taken as they stand in the text.
    """
    tree = ast.parse(text)
    unread = list(_list_unread(tree))
    strings = {_start(node): node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)}
    words: list[str] = []
    end = (0, 0)  # of the last f-string, which was taken as a whole
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_inside = token.start < end or any(first <= token.start < last for first, last in unread)
        if token.type in UNREAD or is_inside:
            continue
        if token.start in strings and token.string:
            node = strings[token.start]
            words.append(ast.get_source_segment(text, node) or "")
            end = _end(node)
            continue
        if token.string in tuple(")]}") and words and words[-1] == ",":
            words.pop()  # a trailing comma is layout
        words.append(LAYOUT.get(token.type, token.string))
    return " ".join(words)


def _list_unread(tree: ast.Module) -> Iterator[tuple[Position, Position]]:
    """Yields the start and end of imports and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield _start(node), (_end(node)[0] + 1, 0)  # with the end of its line
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            yield _start(first), (_end(first)[0] + 1, 0) if len(body or ()) > 1 else _end(first)


def _start(node: ast.stmt | ast.expr) -> Position:
    return node.lineno, node.col_offset


def _end(node: ast.stmt | ast.expr) -> Position:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
