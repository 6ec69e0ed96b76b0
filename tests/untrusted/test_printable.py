"""Characters that a terminal or a log must not receive from a model, a client or a file."""

import json

import pytest

from firesteel.untrusted.printable import escape_line, escape_lines

CONTROLS = ["\x1b", "\x07", "\r", "\x7f", "\x85", "\x9b", "\x9d", "\u061c", "\u200e", "\u200f", "\u2028", "\u2029"]
CONTROLS += ["\u202a", "\u202b", "\u202c", "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u2069", "\ud800"]


@pytest.mark.parametrize("character", CONTROLS, ids=ascii)
def test_control_characters_are_escaped_as_json_reads_them(character):
    for escape in (escape_line, escape_lines):
        shown = escape(f"a{character}b")
        assert shown.isascii() and shown.isprintable() and json.loads(f'"{shown}"') == f"a{character}b"


def test_line_feeds_stay_in_texts_of_several_lines_only():
    assert escape_lines("a\n\tb") == "a\n\tb" and escape_line("a\n\tb") == "a\\u000a\\u0009b"


def test_ordinary_text_stays():
    text = "Grüße, שלום, العربية, 日本語, 👩‍🚀, [bold] \\u202e"
    assert escape_line(text) == text and escape_lines(text) == text
