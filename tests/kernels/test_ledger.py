"""The ledger records activations and launches with tile and artefact, and nothing outside an op."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

from firesteel.kernels.ledger import Launch, Ledger, Ran, note_clipped
from firesteel.kernels.op.op import anywhere, define_op
from firesteel.kernels.op.operands import RoundedOperands
from firesteel.kernels.op.tolerance import exact
from firesteel.kernels.tiles.launch import launch_kernel


class FakeKernel:
    """A fake Triton kernel: called with a grid, it returns the compiled kernel."""

    __name__ = "halve_kernel"

    def __init__(self, artefact):
        self.compiled = None if artefact is None else SimpleNamespace(hash=artefact)
        self.grids = []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return lambda *args, **options: self.compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class HalveOperands(RoundedOperands):
    x: torch.Tensor


def some(count, activation="bf16"):
    return HalveOperands(x=torch.ones(count), activation=activation)


def launching_op(kernel):
    @define_op(bytes=lambda operands: operands.x.nbytes, tolerance=exact(why="test"))
    def halve(operands: HalveOperands):
        return operands.x / 2

    @halve.implementation("gpu", needs=anywhere)
    def gpu(operands: HalveOperands):
        launch_kernel(kernel, (len(operands.x),), operands.x, tile="16x32", num_warps=4)
        return operands.x / 2

    halve.prefer("gpu")
    return halve


def test_activations_and_artefacts_have_separate_entries():
    kernel, ledger = FakeKernel("abc"), Ledger()
    chosen = launching_op(kernel).choose(None, None, ledger)
    chosen(some(2))
    chosen(some(3, "mxfp8"))
    kernel.compiled = SimpleNamespace(hash="def")
    chosen(some(3, "mxfp8"))
    assert kernel.grids == [(2,), (3,), (3,)]
    assert list(ledger.entries) == [Ran("halve", "gpu", "bf16"), Ran("halve", "gpu", "mxfp8")]
    entry = ledger.entries[Ran("halve", "gpu", "mxfp8")]
    assert entry.calls == 2
    assert entry.launches == {
        Launch("halve_kernel", "16x32", "abc", None): 1,
        Launch("halve_kernel", "16x32", "def", None): 1,
    }
    assert ledger.launches() == {"halve_kernel": 3}


def test_the_interpreter_compiles_nothing():
    ledger = Ledger()
    launching_op(FakeKernel(None)).choose(None, None, ledger)(some(2))
    (launch,) = ledger.entries[Ran("halve", "gpu", "bf16")].launches
    assert (launch.artefact, launch.compiled) == ("interpreted", None)


def test_launches_outside_an_op_are_not_recorded():
    ledger = Ledger()
    launch_kernel(FakeKernel("abc"), (1,))
    assert ledger.launches() == {}


def test_an_op_that_fails_leaves_no_open_entry():
    kernel, ledger = FakeKernel("abc"), Ledger()
    op = launching_op(kernel)

    @op.implementation("broken", needs=anywhere)
    def broken(operands: HalveOperands):
        raise RuntimeError("broken")

    try:
        op.choose(None, "broken", ledger)(some(1))
    except RuntimeError:
        launch_kernel(kernel, (1,))
    assert ledger.launches() == {}


def test_clipped_values_are_read_on_request_and_each_counter_once():
    @define_op(bytes=lambda counter: counter.nbytes, tolerance=exact(why="test"))
    def clip(counter):
        note_clipped(counter)
        return counter.add_(3)

    ledger, one, other = Ledger(), torch.tensor([0]), torch.tensor([10])
    chosen = clip.choose(None, None, ledger)
    for counter in (one, one, other):
        chosen(counter)
    entry = ledger.entries[Ran("clip", "reference")]
    assert entry.clipped == 6 + 13
    one += 1
    assert entry.clipped == 20
    note_clipped(torch.tensor([99]))  # outside an op it is not recorded
    assert entry.clipped == 20


def test_clipping_is_not_reported_if_nothing_counts_it():
    ledger = Ledger()
    launching_op(FakeKernel(None)).choose(None, None, ledger)(some(2))
    assert ledger.entries[Ran("halve", "gpu", "bf16")].clipped is None
