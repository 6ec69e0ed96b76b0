"""Output of answers while they arrive."""

import pytest

from firesteel.cli.chat.partner import AnswerPiece
from firesteel.cli.chat.screen import Screen, ShownAnswer


def test_only_content_goes_to_stdout(capsys):
    screen = Screen()
    for piece in (
        AnswerPiece(reasoning=" Let me "),
        AnswerPiece(reasoning="see. "),
        AnswerPiece(content=" Hi"),
        AnswerPiece(content=" you"),
    ):
        screen.show(piece)
    screen.end()
    out, err = capsys.readouterr()
    assert out == " Hi you\n" and err == " Let me see. \n"


def test_empty_answer_is_an_empty_line(capsys):
    screen = Screen()
    screen.show(AnswerPiece(finish_reason="stop"))
    screen.end()
    assert capsys.readouterr().out == "\n"


def test_long_piece_is_not_wrapped(capsys):
    screen = Screen()
    screen.show(AnswerPiece(reasoning="word " * 100))
    screen.end()
    assert capsys.readouterr().err == "word " * 100 + "\n"


def test_markup_from_the_model_is_plain_text(capsys):
    Screen().show(AnswerPiece(reasoning="[bold]x[/bold] :smile:"))
    assert capsys.readouterr().err == "[bold]x[/bold] :smile:"


def test_control_and_direction_characters_are_escaped(capsys):
    screen = Screen()
    screen.show(AnswerPiece(reasoning="\x9b2Jx", content="\x1b]0;title\x07a\tb\nc\u202ed\r"))
    screen.note("\u2066note")
    shown = capsys.readouterr()
    assert shown.out.startswith("\\u001b]0;title\\u0007a\tb\nc\\u202ed\\u000d")
    assert "\\u009b2Jx" in shown.err and "\\u2066note" in shown.err


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set with `clock.now`."""

    class Clock:
        now = 100.0

    monkeypatch.setattr("firesteel.cli.chat.screen.time.perf_counter", lambda: Clock.now)
    return Clock


def test_speed_counts_the_tokens_after_the_first(clock):
    answer = ShownAnswer(started=100.0)
    for now, piece in (
        (100.5, AnswerPiece(content="a")),
        (102.5, AnswerPiece(content="b")),
        (110.0, AnswerPiece(num_tokens=41)),
    ):
        clock.now = now
        answer.push(piece)
    assert answer.in_words() == "41 tokens, 20.0 tokens/s, first after 0.50 s"


def test_pieces_are_not_called_tokens(clock):
    answer = ShownAnswer(started=100.0)
    answer.push(AnswerPiece(content="a"))
    clock.now += 1
    answer.push(AnswerPiece(content="b"))
    assert answer.in_words() == "2 pieces, 1.0 pieces/s, first after 0.00 s"


def test_answer_in_one_piece_has_no_rate(clock):
    answer = ShownAnswer(started=100.0)
    answer.push(AnswerPiece(content="a", num_tokens=7, finish_reason="length"))
    assert answer.in_words() == "7 tokens, first after 0.00 s, cut at the maximum number of tokens"
    assert ShownAnswer().in_words() == "no text"
