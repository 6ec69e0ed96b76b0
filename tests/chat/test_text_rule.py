"""Rules of text that a client describes: test_grammar.py shows what they accept."""

import pytest

from firesteel.chat.text_rule import lark_rule, regex_rule


@pytest.mark.parametrize(
    ("pattern", "rule"),
    [
        ("[0-9]+/2", r"/[0-9]+\/2/"),
        (r"a\/b", r"/a\/b/"),
        ("^a$", "/a/"),
        (r"\^a\$", r"/\^a\$/"),
        ("a\r\nb", r"/a\r\nb/"),
        ("a\\\nb", r"/a\nb/"),
        ("^$", '""'),
    ],
)
def test_patterns_are_quoted_and_lose_their_outer_anchors(pattern, rule):
    assert regex_rule(pattern) == rule


def test_grammars_are_nested():
    assert lark_rule('start: "a"') == '%lark {\nstart: "a"\n}'
