"""Stop strings in streamed text: where the text is cut, and what is held back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.chat.stop import StopFilter

LETTERS = st.text("ab\n", max_size=20)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


@st.composite
def cut_texts(draw):
    """Draws a text and the pieces it comes in, some of them empty."""
    text = draw(LETTERS)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return text, [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def cut_slowly(text, stops, include):
    """Returns the expected cut: going by characters, the first end in a stop string, the longest of those."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


def run(pieces, stops, include=False):
    stream = StopFilter(stops, include=include)
    shown = [stream.push(piece) for piece in pieces]
    return "".join([*shown, stream.flush()]), stream.matched


@settings(max_examples=500, deadline=None)
@given(cut_texts(), STOPS, st.booleans())
def test_output_ends_at_the_first_stop_string_however_the_text_is_split(cut, stops, include):
    text, pieces = cut
    assert run(pieces, stops, include) == cut_slowly(text, stops, include)


@settings(max_examples=300, deadline=None)
@given(cut_texts(), STOPS)
def test_no_more_text_is_held_back_than_needed(cut, stops):
    """The held text begins a stop string, and no longer end of the text does."""
    stream, seen, shown = StopFilter(stops), "", ""
    for piece in cut[1]:
        seen += piece
        shown += stream.push(piece)
        if stream.matched is not None:
            return
        ends = [seen[i:] for i in range(len(seen))]
        beginnings = [end for end in ends if any(stop.startswith(end) and stop != end for stop in stops)]
        assert seen == shown + max(beginnings, key=len, default="")


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("abcd", ["abcd", "bc"], "a"),  # bc ends first
        ("xabc", ["bc", "abc"], "x"),  # both end together: the longer
        ("aab", ["ab"], "a"),  # a beginning that fails holds another
        ("one\n\ntwo", ["\n\n"], "one"),
        ("nothing", ["stop"], "nothing"),
        ("sto", ["stop"], "sto"),  # never completed: flushed
    ],
)
def test_rule_by_example(text, stops, expected):
    assert run([text], stops)[0] == run(list(text), stops)[0] == expected


def test_text_after_the_stop_string_is_dropped():
    stream = StopFilter(["END"])
    assert [stream.push("one EN"), stream.push("D two"), stream.push("three"), stream.flush()] == [
        "one ",
        "",
        "",
        "",
    ]
    assert stream.matched == "END"


def test_without_stop_strings_nothing_is_held():
    stream = StopFilter([])
    assert [stream.push("a"), stream.push(""), stream.push("bc"), stream.flush()] == ["a", "", "bc", ""]


def test_text_that_cannot_stop_passes_and_is_not_matched():
    stream = StopFilter(["END"])
    assert stream.push("END E", can_stop=False) == "END E"
    assert stream.push("ND") == "ND"
    assert [stream.push("EN"), stream.push("D")] == ["", ""]
    assert stream.matched == "END"
