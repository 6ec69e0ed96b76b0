"""Launched machine code is read once, in the background, and what cannot be read is reported."""

import threading
from queue import SimpleQueue

import pytest

from firesteel.engine.process import verdicts
from firesteel.engine.process.verdicts import Verdicts
from firesteel.errors import KernelError
from firesteel.kernels.ledger import Launch, Ledger, Ran, note

PATIENCE_S = 10.0


def ledger_of(*artefacts, compiled=True):
    ledger = Ledger()
    for artefact in artefacts:
        ledger.run(
            Ran("linear", "triton:gemm"), note, Launch("gemm", "64x64", artefact, compiled and f"code {artefact}")
        )
    return ledger


def launch(artefact):
    return Launch("gemm", "64x64", artefact, None)


@pytest.fixture
def read(monkeypatch):
    """The machine code read so far, with the thread that read it."""
    seen = []

    def judge(compiled):
        seen.append((compiled, threading.current_thread()))
        if compiled == "code torn":
            raise KernelError("nvdisasm failed")
        return f"verdict on {compiled}"

    monkeypatch.setattr(verdicts, "judge_compiled", judge)
    return seen


def codes(read):
    """Returns them sorted: readers race."""
    return sorted(code for code, _ in read)


def wait_for(known, ledger):
    told = SimpleQueue()
    known.read(ledger, lambda: told.put(True))
    assert told.get(timeout=PATIENCE_S)


def test_new_machine_code_is_read_once_by_another_thread(read):
    known = Verdicts()
    assert known.find(launch("a")) is None
    wait_for(known, ledger_of("a", "b", "a"))
    assert known.find(launch("a")) == "verdict on code a"
    assert codes(read) == ["code a", "code b"]
    assert all(thread is not threading.current_thread() for _, thread in read)
    wait_for(known, ledger_of("a", "c"))
    assert codes(read) == ["code a", "code b", "code c"]


def test_nothing_is_read_if_all_is_known_or_nothing_was_compiled(read):
    known = Verdicts()
    wait_for(known, ledger_of("a"))
    for ledger in (ledger_of("a"), ledger_of("x", compiled=None), Ledger()):
        known.read(ledger, pytest.fail)
    wait_for(known, ledger_of("b"))  # after what the others would have read
    assert codes(read) == ["code a", "code b"]


def test_unreadable_code_is_reported_and_not_retried(read, caplog):
    known = Verdicts()
    wait_for(known, ledger_of("torn", "b"))
    assert known.find(launch("torn")) == "unread" and known.find(launch("b")) == "verdict on code b"
    assert "machine code of gemm torn could not be read: nvdisasm failed" in caplog.text
    known.read(ledger_of("torn"), pytest.fail)
    wait_for(known, ledger_of("c"))
    assert codes(read) == ["code b", "code c", "code torn"]


def test_second_read_does_not_start_during_the_first(monkeypatch):
    gate, told = threading.Event(), SimpleQueue()
    monkeypatch.setattr(verdicts, "judge_compiled", lambda compiled: str(gate.wait(PATIENCE_S)))
    known = Verdicts()
    known.read(ledger_of("a"), lambda: told.put("first"))
    known.read(ledger_of("a", "b"), lambda: told.put("second"))
    gate.set()
    assert told.get(timeout=PATIENCE_S) == "first"
    assert known.find(launch("b")) is None and told.empty()
    wait_for(known, ledger_of("a", "b"))
    assert known.find(launch("b")) == "True"


def test_several_are_read_in_parallel_and_all_before_then(monkeypatch):
    meeting = threading.Barrier(verdicts.READERS)

    def judge(compiled):
        meeting.wait(PATIENCE_S)  # breaks if fewer read at a time
        return compiled

    monkeypatch.setattr(verdicts, "judge_compiled", judge)
    known, names = Verdicts(), [str(number) for number in range(3 * verdicts.READERS)]
    wait_for(known, ledger_of(*names))
    assert [known.find(launch(name)) for name in names] == [f"code {name}" for name in names]


@pytest.mark.usefixtures("read")
def test_two_kernels_of_one_artefact_have_two_verdicts():
    ledger = ledger_of("a")
    ledger.run(Ran("linear", "triton:gemm"), note, Launch("another", "", "a", "code b"))
    known = Verdicts()
    wait_for(known, ledger)
    assert known.find(launch("a")) == "verdict on code a"
    assert known.find(Launch("another", "", "a", None)) == "verdict on code b"
