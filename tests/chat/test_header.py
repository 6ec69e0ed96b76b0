"""Headers while they are written: when words can no longer be a header, and which words are known."""

import pytest

from firesteel.chat.format import Message
from firesteel.chat.header import MAX_CHARACTERS, HeaderDraft


def draft(author="", channel=None, constrain=None, role="assistant"):
    made = HeaderDraft(role)
    made.write(author)
    for section, text in (("channel", channel), ("constrain", constrain)):
        if text is not None:
            made.open(section)
            made.write(text)
    return made


def header(**fields):
    return Message(role=fields.pop("role", "assistant"), content="", **fields)


@pytest.mark.parametrize(
    ("made", "known", "rest"),
    [
        (draft(channel="analysis"), header(channel="analysis"), ""),
        (draft(channel="analysisWe need"), header(channel="analysis"), "We need"),
        (draft(channel="final so be it"), header(channel="final"), " so be it"),
        (
            draft("", "commentary to=functions.f code"),
            header(channel="commentary", recipient="functions.f", content_type="code"),
            "",
        ),
        (
            draft("", "commentary to=f", 'json{"a"'),
            header(channel="commentary", recipient="f", content_type="<|constrain|>json"),
            '{"a"',
        ),
        (draft("user:bob hi", role=None), header(role="user", name="bob"), " hi"),
        (
            draft("functions.f to=assistant", role=None),
            header(role="tool", name="functions.f", recipient="assistant"),
            "",
        ),
        (draft("user hi"), header(), "user hi"),
        (draft("example.org is"), header(), "example.org is"),
        (draft("final answer"), header(), "final answer"),
        (draft("commentary to=functions.f"), header(channel="commentary", recipient="functions.f"), ""),
    ],
)
def test_known_words_are_split_from_text(made, known, rest):
    assert made.split() == (known, rest)


def test_section_of_four_words_is_not_a_header():
    assert not draft("one two three ").is_impossible and draft("one two three f").is_impossible
    assert not draft("one two three", "four").is_impossible
    assert draft("x" * (MAX_CHARACTERS + 1)).is_impossible


@pytest.mark.parametrize("text", ["anal", "commentary t", "commentary to=functions.f js", "final"])
def test_header_may_be_cut_inside_a_word(text):
    assert draft(channel=text).is_cut and not draft(channel=text + "!").is_cut


def test_complete_header_keeps_words_outside_the_format():
    assert draft(channel="weird to=x").read() == header(channel="weird", recipient="x")
    assert draft(channel="final a b").read().channel == "final"
    assert draft("analysis").read() == header(channel="analysis")


def test_section_opens_only_after_words_that_can_precede_it():
    assert draft(" to=functions.f").can_open("channel") and not draft("Hello").can_open("channel")
    assert draft("python to=assistant", role=None).can_open("channel")
    assert draft(channel=" ").can_open("channel") and not draft(channel="final").can_open("channel")
    assert draft("json").can_close() and not draft("Hello").can_close() and draft("Hello", role=None).can_close()
