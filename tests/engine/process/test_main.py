"""The engine process's message loop, run in this process."""

import threading
import time
from queue import Empty, SimpleQueue

import pytest
import torch

from firesteel.config import BatchConfig, CacheConfig, resolve
from firesteel.engine.engine import Engine
from firesteel.engine.load import load_engine
from firesteel.engine.process import main
from firesteel.engine.process.main import MessageLoop
from firesteel.engine.process.messages import (
    Cancel,
    GetLedger,
    GetStatistics,
    LedgerSoFar,
    Planned,
    Rejected,
    Shutdown,
    StatisticsAnswer,
    Step,
    Submit,
)
from firesteel.engine.sample.grammar import Grammars
from firesteel.kernels.ledger import Launch, Ledger, Ran, note, note_clipped
from firesteel.types import Request, SamplingParams

GREEDY = SamplingParams(max_tokens=5, ignore_eos=True)


def submit(number, name, token_ids=(1, 2, 3), params=GREEDY):
    return Submit.of(Request(request_id=name, token_ids=token_ids, params=params), number)


class Driver:
    """A message loop whose messages are kept; `run` continues until no request is left."""

    def __init__(self, llm):
        self.sent, self.inbox = [], SimpleQueue()
        self.engine = Engine(
            llm.model,
            llm.device,
            BatchConfig(page_size=4),
            CacheConfig(kv_cache_gib=0.001),
            max_context=llm.max_context,
        )
        grammars = Grammars.of(llm.directory)
        self.loop = MessageLoop(self.engine, llm.ledger(), grammars, self.inbox, self.sent.append)

    def handle(self, *messages):
        for message in messages:
            self.loop._handle(message)

    def handle_next(self):
        """Handles what a background thread puts into the inbox."""
        self.handle(self.inbox.get(timeout=10))

    def run(self):
        while self.engine.has_work:
            self.loop._step()

    def of(self, kind):
        return [message for message in self.sent if isinstance(message, kind)]

    def tokens(self, number):
        outputs = [output for step in self.of(Step) for output in step.outputs if output.number == number]
        return [token for output in outputs for token in output.token_ids]


@pytest.fixture
def driver(llm):
    return Driver(llm)


@pytest.fixture(scope="module")
def expected(llm):
    return llm.generate([[1, 2, 3]], GREEDY)[0].token_ids


def test_plan_is_sent_before_it_is_computed(driver, monkeypatch):
    driver.handle(submit(7, "a"))
    monkeypatch.setattr(driver.engine.runner, "run", lambda batch, taps: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        driver.loop._step()
    assert driver.sent == [Planned(spans=[("a", 0, 3)])]


def test_step_is_one_message_for_all_requests(driver, expected):
    driver.handle(submit(7, "a"), submit(8, "b"))
    driver.run()
    assert driver.tokens(7) == driver.tokens(8) == expected
    assert [len(step.outputs) for step in driver.of(Step)] == [2] * 5
    assert driver.of(Planned)[1].spans == [("a", 3, 4), ("b", 3, 4)]
    assert driver.of(Step)[-1].outputs[0].statistics.output_tokens == 5
    assert driver.loop.numbers == {}


def test_second_request_of_a_name_has_its_own_outputs(driver, expected):
    driver.handle(submit(7, "a"))
    driver.loop._step()
    driver.handle(Cancel(number=7, finished=False), submit(8, "a"))
    driver.run()
    assert driver.tokens(7) == expected[:1] and driver.tokens(8) == expected


def test_request_that_can_never_run_is_rejected_and_the_next_runs(driver, expected):
    driver.handle(submit(7, "long", [1] * 255), submit(8, "a"), submit(9, "a"))
    driver.run()
    long, twice = driver.of(Rejected)
    assert (long.number, long.kind) == (7, "RequestError") and "exceed the context of 256" in long.reason
    assert twice.number == 9 and "one of this name already" in twice.reason
    assert driver.tokens(8) == expected


def test_grammar_is_compiled_in_the_engine_process(driver):
    params = SamplingParams(max_tokens=9, grammar='start: "abc" <|end|>')
    driver.handle(submit(7, "a", params=params))
    driver.handle_next()
    driver.run()
    assert bytes(driver.tokens(7)[:3]) == b"abc"


def test_request_with_an_invalid_grammar_is_rejected_and_the_next_runs(driver, expected):
    driver.handle(submit(7, "bad", params=SamplingParams(grammar="start: nothing")), submit(8, "a"))
    driver.handle_next()
    driver.run()
    (bad,) = driver.of(Rejected)
    assert (bad.number, bad.kind) == (7, "RequestError") and "the grammar cannot be used" in bad.reason
    assert driver.tokens(8) == expected


def test_reader_that_found_the_end_gets_a_last_output(driver):
    driver.handle(submit(7, "a"))
    driver.loop._step()
    driver.handle(Cancel(number=7, finished=True), Cancel(number=7, finished=True), GetStatistics(number=3))
    (last,) = driver.of(Step)[-1].outputs
    assert (last.number, last.token_ids, last.finish_reason) == (7, [], "stop")
    assert last.statistics.output_tokens == 1
    (answer,) = driver.of(StatisticsAnswer)
    totals = answer.statistics
    counts = (totals.requests_finished, totals.requests_cancelled, totals.pages_held)
    assert answer.number == 3 and counts == (1, 0, 0)


def test_cancelled_request_frees_its_pages_and_has_no_output(driver):
    driver.handle(submit(7, "a"))
    driver.loop._step()
    before = len(driver.sent)
    driver.handle(Cancel(number=7, finished=False), Cancel(number=99, finished=False))
    assert len(driver.sent) == before and not driver.engine.has_work
    assert driver.engine.statistics().pages_held == 0 and driver.engine.statistics().requests_cancelled == 1


def test_ledger_is_sent_periodically_not_with_each_step(driver):
    driver.handle(submit(7, "a"))
    driver.run()
    (first,) = driver.of(LedgerSoFar)
    assert {"linear", "attention"} <= {row.op for row in first.rows}
    driver.loop.send_ledger()
    second = driver.of(LedgerSoFar)[1]
    assert sum(row.calls for row in second.rows) > sum(row.calls for row in first.rows)


def test_ledger_rows_count_launches_by_kernel():
    ledger = Ledger()
    for artefact in ("x", "y"):
        ledger.run(Ran("linear", "triton:gemm", "mxfp8"), note, Launch("gemm", "64x64", artefact, None))
    (row,) = main.ledger_rows(ledger)
    assert (row.op, row.implementation, row.activation) == ("linear", "triton:gemm", "mxfp8")
    assert (row.calls, row.launches) == (2, {"gemm": 2})


def test_ledger_rows_have_machine_code_with_its_verdict():
    ledger = Ledger()
    for artefact, compiled in (("x", "code"), ("y", "code"), ("x", "code"), ("interpreted", None)):
        ledger.run(Ran("linear", "triton:gemm"), note, Launch("gemm", "64x64", artefact, compiled))
    (row,) = main.ledger_rows(ledger, find_verdict=lambda launch: {"x": "bf16"}.get(launch.artefact))
    assert row.launches == {"gemm": 4}
    assert row.as_dict()["artefacts"] == [
        {"kernel": "gemm", "tile": "64x64", "artefact": "x", "launches": 2, "verdict": "bf16"},
        {"kernel": "gemm", "tile": "64x64", "artefact": "y", "launches": 1, "verdict": None},
    ]


def test_ledger_is_answered_at_once_and_again_with_verdicts(driver, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr("firesteel.engine.process.verdicts.judge_compiled", lambda code: gate.wait(10) and code)
    ran = Ran("linear", "triton:gemm")
    driver.loop.ledger.run(ran, note, Launch("gemm", "", "x", "int8"))
    driver.handle(GetLedger())
    gate.set()
    driver.handle_next()
    with pytest.raises(Empty):
        driver.inbox.get(timeout=0.2)
    del driver.loop.ledger.entries[ran]
    first, second = driver.of(LedgerSoFar)
    assert [
        code.verdict
        for told in (first, second)
        for row in told.rows
        if row.op == "linear"
        for code in row.artefacts
    ] == [None, "int8"]


def test_ledger_rows_say_what_was_clipped():
    ledger = Ledger()
    ledger.run(Ran("rope_kv_write", "triton"), note_clipped, torch.tensor([5]))
    (row,) = main.ledger_rows(ledger)
    assert row.clipped == row.as_dict()["clipped"] == 5


def test_run_ends_at_shutdown_even_with_work_left(driver):
    for message in (submit(7, "a"), Shutdown(), submit(8, "b")):
        driver.inbox.put(message)
    driver.loop.run()
    assert driver.sent == [] and not driver.inbox.empty()


class SlowGrammars(Grammars):
    """Compiles once the gate is open."""

    gate = threading.Event()

    def bind(self, request):
        assert self.gate.wait(10)
        return super().bind(request)


def test_other_requests_continue_while_a_grammar_is_compiled(llm, expected):
    """Compiling a large schema blocked every request; one that is cancelled meanwhile never runs."""
    driver = Driver(llm)
    SlowGrammars.gate.clear()
    driver.loop.grammars = SlowGrammars.of(llm.directory)
    held = SamplingParams(max_tokens=3, grammar='start: "abc"')
    bad = SamplingParams(max_tokens=3, grammar="start: nothing")
    for message in (
        submit(1, "held", params=held),
        submit(2, "left", params=held),
        Cancel(number=2, finished=False),
        submit(3, "bad", params=bad),
        submit(4, "plain"),
    ):
        driver.inbox.put(message)
    worker = threading.Thread(target=driver.loop.run)
    worker.start()
    while len(driver.tokens(4)) < 5:
        assert worker.is_alive()
        time.sleep(0.01)
    assert driver.tokens(4) == expected and not driver.tokens(1)
    SlowGrammars.gate.set()
    while len(driver.tokens(1)) < 3 or not driver.of(Rejected):
        assert worker.is_alive()
        time.sleep(0.01)
    driver.inbox.put(Shutdown())
    worker.join(10)
    assert bytes(driver.tokens(1)) == b"abc" and driver.tokens(2) == []
    assert [rejected.number for rejected in driver.of(Rejected)] == [3]
    assert driver.loop.numbers == {} and not driver.loop._compiling


def test_ready_message_names_the_formats(checkpoint, monkeypatch):
    monkeypatch.setenv("FIRESTEEL_KV_DTYPE", "fp8")
    config = resolve({"device": "cpu", "page_size": 4, "kv_cache_gib": 0.01, "mxfp4_layers": "moe,qkv"}).config
    formats = main.describe(load_engine(checkpoint, config)).formats
    assert formats == {
        "mxfp4_layers": "qkv",
        "activation": "bf16",
        "prefill_activation": "bf16",
        "kv": "float8_e4m3fn",
    }
