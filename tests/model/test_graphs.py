"""Captured steps: refusals, ledger counts of replays, and results of replays."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from firesteel.device import find_device
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Launch, Ledger, Ran, note
from firesteel.kernels.ops.rms_norm import RmsNormOperands
from firesteel.model.graphs import WARMUPS, Counts, GraphError, StepGraph

CPU = find_device("cpu")
RAN, OTHER = Ran("rms_norm", "triton"), Ran("route", "triton")
LAUNCH = Launch("kernel", "", "a", None)


def test_counts_since_hold_only_what_was_added():
    ledger = Ledger()
    ledger.run(RAN, lambda: note(LAUNCH))
    before = Counts.of(ledger)
    for _ in range(2):
        ledger.run(RAN, lambda: (note(LAUNCH), note(LAUNCH)))
    added = Counts.of(ledger).since(before)
    assert added == Counts({RAN: 2}, {(RAN, LAUNCH): 4})
    added.add_to(ledger, -1)
    assert Counts.of(ledger) == before
    ledger.clear()
    added.add_to(ledger)
    assert Counts.of(ledger) == added, "a ledger may be cleared between replays"


def test_counts_of_ops_that_were_not_called_before():
    ledger = Ledger()
    before = Counts.of(ledger)
    ledger.run(OTHER, lambda: None)
    assert Counts.of(ledger).since(before) == Counts({OTHER: 1}, {})


def test_graph_on_a_cpu_is_refused_with_its_cure():
    with pytest.raises(GraphError, match=r"need an NVIDIA GPU, this is CPU: use --no-cuda-graphs"):
        StepGraph(lambda: None, Ledger(), CPU, undo=lambda: None)


def test_timed_ledger_is_refused_before_anything_runs():
    runs = []
    with pytest.raises(GraphError, match="times each op"):
        StepGraph(lambda: runs.append(1), Ledger(timed=True), replace(CPU, capability=(9, 0)), undo=lambda: None)
    assert runs == []


class FakeGraph:
    """Acts like torch's: what runs inside `capturing` is only recorded, and `replay` runs it."""

    def __init__(self, events):
        self.events = events

    def replay(self):
        self.events.append("replay")


@pytest.fixture
def events(monkeypatch):
    """Returns the list of calls of a fake torch.cuda."""
    noted = []

    @contextmanager
    def inside(name):
        noted.append(f"begin {name}")
        yield
        noted.append(f"end {name}")

    stream = SimpleNamespace(wait_stream=lambda other: None)
    fake = SimpleNamespace(
        device=lambda device: nullcontext(),
        Stream=lambda: stream,
        current_stream=lambda: stream,
        stream=lambda _: inside("side stream"),
        synchronize=lambda: noted.append("wait"),
        CUDAGraph=lambda: FakeGraph(noted),
        graph=lambda graph, pool: inside("capture"),
    )
    monkeypatch.setattr(torch, "cuda", fake)
    return noted


def test_step_warms_up_on_a_side_stream_and_is_undone_before_capture(events):
    ledger = Ledger()

    def run():
        events.append("run")
        return ledger.run(RAN, lambda: note(LAUNCH) or "logits")

    graph = StepGraph(run, ledger, replace(CPU, capability=(9, 0)), undo=lambda: events.append("undo"))
    warm_up = ["begin side stream", *["run"] * WARMUPS, "end side stream", "wait"]
    assert events == [*warm_up, "undo", "begin capture", "run", "end capture"]
    assert Counts.of(ledger) == Counts({RAN: WARMUPS}, {(RAN, LAUNCH): WARMUPS})
    assert graph.replay() == "logits" and graph.replay() == "logits"
    assert events[-2:] == ["replay", "replay"]
    assert Counts.of(ledger) == Counts({RAN: WARMUPS + 2}, {(RAN, LAUNCH): WARMUPS + 2})


@pytest.fixture(scope="module")
def counter():
    """Returns a step that adds its norm's output to a static tensor, with its device, kernels and the tensor."""
    device = find_device("cuda")
    kernels = Kernels(device, {}, Ledger())
    x = torch.randn(4, 2880, device=device.torch_device).bfloat16()
    weight, total = torch.ones_like(x[0]), torch.zeros_like(x)

    def run():
        y, _ = kernels.rms_norm(RmsNormOperands(residual=x, weight=weight, eps=1e-5))
        total.add_(y)
        return total

    return device, kernels, run, total


@pytest.mark.gpu
def test_replays_equal_eager_steps_and_capture_leaves_no_trace(counter, forbid_waiting):
    device, kernels, run, total = counter
    run()
    eager = total.clone()
    total.zero_()
    graph = StepGraph(run, kernels.ledger, device, undo=total.zero_)
    torch.cuda.synchronize()
    assert total.abs().sum() == 0, "capturing computes nothing and what came before is undone"
    with forbid_waiting():
        result = graph.replay()
    assert result is graph.outputs and torch.equal(total, eager)


@pytest.mark.gpu
def test_ledger_counts_replays_and_not_the_capture(counter):
    device, kernels, run, total = counter
    kernels.ledger.clear()
    graph = StepGraph(run, kernels.ledger, device, undo=total.zero_)
    (entry,) = kernels.ledger.entries.values()
    assert entry.calls == WARMUPS and list(entry.launches.values()) == [WARMUPS]
    for _ in range(3):
        graph.replay()
    assert entry.calls == WARMUPS + 3 and list(entry.launches.values()) == [WARMUPS + 3]
