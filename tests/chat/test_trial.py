"""Trial compilation in this process, and the program of the child process."""

import os
import select
import signal
import socket
import subprocess
import sys

import pytest

from firesteel.chat import trial
from firesteel.chat.grammar import JSON_OBJECT, build_grammar, grammar_for
from firesteel.chat.harmony import ResponseFormat
from firesteel.chat.tools import Tool
from firesteel.errors import RequestError

pytest.importorskip("llguidance")
TOOLS = [Tool(name=name, description="", parameters={"type": "object"}, strict=True) for name in ("f", "g")]


def test_whole_turn_compiles_with_a_vocabulary_of_bytes():
    for choice in ("auto", "required", "none"):
        grammar = build_grammar(tools=TOOLS, tool_choice=choice, response_format=JSON_OBJECT)
        assert trial.find_fault(grammar.rules, grammar.trial) is None
        assert trial.find_fault({}, grammar.text)[0] == trial.TOGETHER  # special tokens are unknown


def test_rules_are_named():
    grammar = build_grammar(tools=TOOLS, response_format=JSON_OBJECT)
    assert list(grammar.rules) == ["response_format", "tool 'f'", "tool 'g'"]
    assert trial.find_fault({**grammar.rules, "bad": '%json {"type": "no"}'}, "")[0] == "bad"


def test_panic_here_is_a_request_error(monkeypatch):
    def panic(rules, whole):
        raise type("PanicException", (BaseException,), {})("index out of range")

    monkeypatch.setattr("firesteel.chat.grammar.find_fault", panic)
    with pytest.raises(RequestError, match=r"llguidance fails on it .*index out of range"):
        grammar_for(response_format=ResponseFormat(name="x", schema={"type": "string", "maxLength": 77}))


def test_panic_is_an_answer_of_the_child(monkeypatch):
    def panic(rules, whole):
        raise type("PanicException", (BaseException,), {})("index out of range")

    monkeypatch.setattr(trial, "find_fault", panic)
    assert trial.answer({"rules": {}, "whole": ""}) == {
        "fault": None,
        "panic": "PanicException: index out of range",
    }


@pytest.fixture
def child():
    """A child and its socket. Its parent is this process."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        arguments = [str(theirs.fileno()), str(os.getpid()), str(256 << 20)]
        process = subprocess.Popen(
            [sys.executable, "-P", trial.__file__, *arguments], pass_fds=[theirs.fileno()], stderr=subprocess.PIPE
        )
        theirs.close()
        yield process, ours
        process.kill()
        process.communicate()


def test_child_ends_quietly_when_its_parent_closes_the_socket(child):
    process, ours = child
    ours.close()
    assert process.wait(30) == 0 and process.stderr.read() == b""


def test_child_does_not_import_firesteel(child):
    """Importing firesteel imports torch, which takes seconds."""
    process, ours = child
    message = b'{"rules": {}, "whole": "start: \\"a\\""}'
    ours.sendall(trial.HEAD.pack(len(message)) + message)
    size = trial.HEAD.unpack(trial.read(ours, trial.HEAD.size))[0]
    assert trial.read(ours, size) == b'{"fault": null, "panic": null, "retires": false}'
    with open(f"/proc/{process.pid}/maps", encoding="utf-8") as maps:
        assert "libtorch" not in maps.read()


def test_child_dies_with_its_parent():
    """A child that compiles does not look at its socket."""
    program = f"""
import os, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
arguments = [str(theirs.fileno()), str(os.getpid()), "300000000"]
command = [sys.executable, "-P", {trial.__file__!r}, *arguments]
child = subprocess.Popen(command, pass_fds=[theirs.fileno(), ours.fileno()])  # so that it never reads an end
message = b'{{"rules": {{}}, "whole": "start: \\\\"a\\\\""}}'
ours.sendall(len(message).to_bytes(4, "big") + message)
ours.recv(100)
print(child.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, encoding="ascii")
    with parent:
        pid = int(parent.stdout.readline())
        descriptor = os.pidfd_open(pid)
        parent.send_signal(signal.SIGKILL)
    try:
        assert select.select([descriptor], [], [], 30)[0]  # readable once the child has ended
    finally:
        os.close(descriptor)


def test_gbnf_is_converted_to_lark_or_refused_by_name():
    answer = trial.answer({"name": "g.grammar", "gbnf": 'root ::= "a" [0-9]+'})
    assert answer["fault"] is None and trial.find_fault({}, answer["lark"]) is None
    [name, fault] = trial.answer({"name": "g.grammar", "gbnf": 'root ::= ("a"'})["fault"]
    assert name == "g.grammar" and "Expected" in fault
    deep = trial.answer({"name": "g.grammar", "gbnf": "root ::= " + "(" * 5000})
    assert deep["fault"][0] == "g.grammar"
