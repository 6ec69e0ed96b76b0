"""The verb chat, in its own process and with fake partners."""

import os
import pty
import select
import signal
import subprocess
import sys

import pytest

from firesteel.cli.chat.command import find_partner
from firesteel.cli.chat.conversation import Conversation, check_effort
from firesteel.cli.chat.partner import AnswerOptions, AnswerPiece
from firesteel.errors import UserError

HI = [{"choices": [{"delta": {"reasoning": "Hm."}}]}, {"choices": [{"delta": {"content": "Hi"}}]}]


class Echo:
    """A partner that repeats the last turn and records its requests."""

    name = "echo"

    def __init__(self):
        self.asked = []

    def answer(self, turns, options):
        self.asked.append((list(turns), options))
        yield AnswerPiece(content=turns[-1]["content"].upper())


class Mute:
    name = "mute"

    def answer(self, turns, options):
        raise UserError("no voice")
        yield


@pytest.fixture
def begin():
    """Starts the program with a pipe as its input."""
    started = []

    def run(*arguments, **pipes):
        command = [sys.executable, "-W", "error", "-m", "firesteel", "chat", *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
        process = subprocess.Popen(command, encoding="utf-8", env={**os.environ, "NO_COLOR": "1"}, **pipes)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_every_line_of_a_pipe_is_a_turn(serve, begin):
    served = serve(events=[*HI, {"choices": [], "usage": {"completion_tokens": 3}}])
    process = begin("--url", served.url, "--system", "Be short.")
    out, err = process.communicate("one\n\n  two  \n", timeout=60)
    assert process.returncode == 0, err
    assert out == "Hi\nHi\n"
    assert err.count("Hm.\n") == 2 and err.count("[3 tokens, ") == 2
    assert [turn["content"] for turn in served.bodies[1]["messages"]] == ["Be short.", "one", "Hi", "two"]


@pytest.mark.slow
def test_error_in_a_pipe_exits_with_2(serve, begin):
    process = begin("--url", serve(refusal={"error": {"message": "too long"}}).url)
    out, err = process.communicate("one\ntwo\n", timeout=60)
    assert process.returncode == 2 and err.count("too long") == 1 and "Traceback" not in err
    assert out == "\n"


@pytest.mark.slow
def test_ctrl_c_stops_the_answer_and_not_the_program(serve, begin):
    served = serve(events=HI * 200, pause_s=0.1)
    process = begin("--url", served.url)
    process.stdin.write("one\n")
    process.stdin.flush()
    assert process.stdout.read(2) == "Hi"
    process.send_signal(signal.SIGINT)
    served.events = HI
    process.stdin.write("two\n")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err.count("pieces") >= 2 and out.endswith("Hi\n") and "Traceback" not in err
    assert [turn["role"] for turn in served.bodies[1]["messages"]] == ["user", "assistant", "user"]


@pytest.mark.slow
def test_terminal_shows_a_prompt_and_dim_reasoning_and_continues_after_errors(serve, begin):
    served = serve(events=HI)
    ours, theirs = pty.openpty()
    process = begin("--url", served.url, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    screen = Screen(ours)
    assert "flint at http" in screen.read_until("> ")
    for typed, expected in (("hello", "Hm."), ("/nothing", "unknown command"), ("/help", "/quit")):
        os.write(ours, f"{typed}\n".encode())
        assert expected in screen.read_until("> ")
    served.refusal = {"error": "busy"}
    os.write(ours, b"hello\n")
    assert "busy" in screen.read_until("> ")
    for _ in range(15):  # Python hears a signal between the prompt and its wait for a line only after that
        process.send_signal(signal.SIGINT)
        if select.select([ours], [], [], 2)[0]:
            break
    screen.read_until("> ")
    os.write(ours, b"\x04")
    assert process.wait(timeout=30) == 0
    os.close(ours)


class Screen:
    """The controlling side of a pseudo-terminal."""

    def __init__(self, descriptor):
        self.descriptor = descriptor

    def read_until(self, end):
        text = ""
        while not text.endswith(end):
            assert select.select([self.descriptor], [], [], 30)[0], f"nothing more after {text!r}"
            text += os.read(self.descriptor, 4096).decode()
        return text


def test_every_turn_sends_the_whole_conversation():
    partner = Echo()
    conversation = Conversation(partner, system="Be loud.")
    conversation.say("a")
    conversation.say("b")
    assert [turn["content"] for turn in partner.asked[1][0]] == ["Be loud.", "a", "A", "b"]
    conversation.command("/reset")
    conversation.say("c")
    assert [turn["content"] for turn in partner.asked[2][0]] == ["Be loud.", "c"]


def test_effort_and_system_apply_to_later_turns():
    partner = Echo()
    conversation = Conversation(partner, options=AnswerOptions(max_tokens=3))
    conversation.command("/effort high")
    conversation.command("/system  Whisper. ")
    conversation.say("a")
    turns, options = partner.asked[0]
    assert turns[0] == {"role": "system", "content": "Whisper."}
    assert options == AnswerOptions(effort="high", max_tokens=3)


def test_turn_without_an_answer_is_dropped():
    conversation = Conversation(Mute())
    with pytest.raises(UserError, match="no voice"):
        conversation.say("a")
    assert conversation.turns == []


def test_unknown_effort_is_refused():
    with pytest.raises(UserError, match="low, medium, high"):
        check_effort("huge")


def test_flags_of_the_other_partner_are_refused():
    with pytest.raises(UserError, match="--page-size: only for a model loaded here"):
        find_partner("http://127.0.0.1:9", "", {"model": "a", "page_size": 16})
    with pytest.raises(UserError, match="--api-key: only for a server"):
        find_partner("", "key", {})


@pytest.mark.slow
def test_key_may_come_from_the_environment(serve, begin, monkeypatch):
    monkeypatch.setenv("FIRESTEEL_API_KEY", "right")
    process = begin("--url", serve(key="right", events=HI).url)
    out, err = process.communicate("one\n", timeout=60)
    assert out == "Hi\n", err
