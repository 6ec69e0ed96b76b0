"""Escapes characters that would move a terminal's cursor, reorder its text or break a log line."""

from __future__ import annotations

# C0 (with line feeds), DEL, C1, marks and overrides of text direction, line and paragraph separators.
_RANGES = (
    (0x00, 0x1F),
    (0x7F, 0x9F),
    (0x061C, 0x061C),
    (0x200E, 0x200F),
    (0x2028, 0x202E),
    (0x2066, 0x2069),
    (0xD800, 0xDFFF),  # lone surrogates, which no output encoding can represent
)
_ESCAPES = {code: f"\\u{code:04x}" for first, last in _RANGES for code in range(first, last + 1)}
_LINES = {code: escape for code, escape in _ESCAPES.items() if chr(code) not in "\n\t"}


def escape_line(text: str) -> str:
    r"""Returns the text with control characters, line feeds included, as `\uXXXX`, which JSON reads back."""
    return text.translate(_ESCAPES)


def escape_lines(text: str) -> str:
    """Does the same as `escape_line`, but keeps line feeds and tabs."""
    return text.translate(_LINES)
