"""The engine process from its first message to its last: load, refusal, shutdown and failure."""

from queue import SimpleQueue

import pytest

from firesteel.config import resolve
from firesteel.engine.process import main
from firesteel.engine.process.main import MessageLoop, last_words, serve
from firesteel.engine.process.messages import Alive, Dying, Ready, Shutdown, Start, Submit
from firesteel.kernels.ledger import Launch, Ran, note, note_clipped
from firesteel.types import Request, SamplingParams


class FaultyCounter:
    """A counter on a device that failed: reading it raises."""

    def __int__(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_last_message_names_the_exception_but_not_an_orderly_exit():
    sent = []
    with pytest.raises(ValueError), last_words(sent.append):
        raise ValueError("no\nroom")
    for kind in (SystemExit, BrokenPipeError):
        with pytest.raises(kind), last_words(sent.append):
            raise kind
    with last_words(sent.append):
        pass
    assert sent == [Dying(cause="ValueError: no\nroom")]


def test_last_messages_are_the_first_error_and_then_the_ledger():
    sent = []
    with pytest.raises(ValueError), last_words(sent.append, lambda: sent.append("the ledger")):
        raise ValueError("first")
    assert sent == [Dying(cause="ValueError: first"), "the ledger"]


class Kept:
    """A fake channel."""

    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)


def small_start(checkpoint):
    config = resolve({"device": "cpu", "memory_reserve_gib": 0.0, "kv_cache_gib": 0.001, "page_size": 4}).config
    return Start(directory=str(checkpoint), config=config)


def test_serve_sends_the_error_of_a_step_though_the_ledger_cannot_be_read(checkpoint, monkeypatch):
    def fail(loop):
        loop.ledger.run(Ran("rope_kv_write", "triton"), note_clipped, FaultyCounter())
        loop.ledger.run(Ran("linear", "triton"), note, Launch("gemm", "", "x", "code"))
        loop.verdicts.find = lambda launch: "bf16"
        raise ZeroDivisionError("in a step")

    monkeypatch.setattr(MessageLoop, "_step", fail)
    inbox, channel = SimpleQueue(), Kept()
    inbox.put(small_start(checkpoint))
    inbox.put(Submit.of(Request(request_id="a", token_ids=[1, 2, 3], params=SamplingParams()), 7))
    with pytest.raises(ZeroDivisionError):
        serve(channel, inbox)
    assert channel.sent[-2] == Dying(cause="ZeroDivisionError: in a step")
    clipping, proven = channel.sent[-1].rows[-2:]
    assert clipping.op == "rope_kv_write" and clipping.clipped is None
    assert [code.verdict for code in proven.artefacts] == ["bf16"], "known verdicts are not lost"


def test_serve_sends_an_error_of_loading(checkpoint, monkeypatch):
    monkeypatch.setattr(main, "load_engine", lambda *args, **more: 1 / 0)
    inbox, channel = SimpleQueue(), Kept()
    inbox.put(small_start(checkpoint))
    with pytest.raises(ZeroDivisionError):
        serve(channel, inbox)
    assert channel.sent[-1] == Dying(cause="ZeroDivisionError: division by zero")


def test_serve_loads_sends_ready_and_ends_at_shutdown(checkpoint, monkeypatch):
    beating = []

    def beat_once(ledger, beat):
        beating.append(ledger)
        beat()
        return beating.clear

    monkeypatch.setattr(main, "beat_at_calls", beat_once)
    inbox, channel = SimpleQueue(), Kept()
    inbox.put(small_start(checkpoint))
    inbox.put(Shutdown())
    serve(channel, inbox)
    kinds = [type(message).__name__ for message in channel.sent]
    assert kinds[0] == "Around" and "Loading" in kinds and kinds[-3:] == ["Ready", "Alive", "LedgerSoFar"]
    assert not beating
    assert channel.sent[0].surroundings["device"] == "CPU"
    (ready,) = (message for message in channel.sent if isinstance(message, Ready))
    assert (ready.device, ready.max_context, ready.vocab_size, ready.page_size) == ("CPU", 256, 272, 4)
    assert ready.pages > 10 and ready.cache_bytes > 0 and ready.kernels["linear"] == "reference"


def test_serve_refuses_with_the_reason_and_its_exit_code(tmp_path):
    inbox, channel = SimpleQueue(), Kept()
    inbox.put(Start(directory=str(tmp_path), config=resolve({"device": "cpu"}).config))
    with pytest.raises(SystemExit) as caught:
        serve(channel, inbox)
    assert caught.value.code == main.REFUSED
    assert "config.json" in channel.sent[-1].reason and channel.sent[-1].kind.endswith("Error")


def test_kernels_compiled_while_loading_send_signs_of_life(checkpoint, monkeypatch):
    beats = []

    def compile_and_fail(*args, **more):
        beats[0]()
        raise ZeroDivisionError

    monkeypatch.setattr(main, "triton_ready", lambda: lambda device: None)
    monkeypatch.setattr(main, "beat_at_compiles", beats.append)
    monkeypatch.setattr(main, "load_engine", compile_and_fail)
    inbox, channel = SimpleQueue(), Kept()
    inbox.put(small_start(checkpoint))
    with pytest.raises(ZeroDivisionError):
        serve(channel, inbox)
    assert channel.sent[1] == Alive()
