"""Calls of an op on one device: choices that are kept, and verdicts on what is launched."""

import pytest
import torch

from firesteel.device import find_device
from firesteel.errors import ArgumentsRefused, KernelError
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.op import anywhere, define_op
from firesteel.kernels.op.requirement import Requirement
from firesteel.kernels.op.tolerance import fp32
from firesteel.kernels.tiles.launch import launch_kernel
from tests.kernels.op.test_op import toy_op

CPU = find_device("cpu")


def keeping_op(asked):
    """Returns an op whose `fast` appends to `asked` every shape that it is asked to accept."""

    def accepts(x, scale=1.0):
        asked.append((tuple(x.shape), scale))
        return None if x.numel() > 1 else "wants two values"

    @define_op(bytes=lambda x, scale=1.0: 2 * x.nbytes, tolerance=fp32(why="toy"), keeps_choice=True)
    def multiply(x, scale=1.0):
        return x * scale

    multiply.implementation("fast", needs=anywhere, accepts=accepts)(lambda x, scale=1.0: x * scale)
    multiply.prefer("fast", "reference")
    return multiply


def test_choice_is_kept_for_equal_calls():
    asked, ledger = [], Ledger()
    chosen = keeping_op(asked).choose(CPU, None, ledger)
    for value, scale in ((3.0, 2.0), (4.0, 2.0), (5.0, 0.5)):
        assert chosen(torch.full((2,), value), scale).tolist() == [value * scale] * 2
    for size in (1, 2, 1):
        chosen(torch.ones(size), 2.0)
    assert asked == [((2,), 2.0), ((2,), 0.5), ((1,), 2.0)]
    assert {key[1]: entry.calls for key, entry in ledger.entries.items()} == {"fast": 4, "reference": 2}
    ledger.clear()
    chosen(torch.ones(2), 2.0)
    assert [entry.calls for entry in ledger.entries.values()] == [1]


def test_choice_is_not_kept_for_keyword_arguments():
    asked = []
    chosen = keeping_op(asked).choose(CPU, None, Ledger())
    for _ in range(2):
        chosen(torch.ones(2), scale=2.0)
    assert len(asked) == 2


def test_a_refusal_is_not_kept():
    asked = []
    op = keeping_op(asked)
    required = op.choose(CPU, None, Ledger(), Requirement("multiply", "fast"))
    for _ in range(2):
        with pytest.raises(KernelError, match="fast is required, but reference would run: fast wants two values"):
            required(torch.ones(1))
        with pytest.raises(ArgumentsRefused, match="fast wants two values"):
            op.choose(CPU, "fast", Ledger())(torch.ones(1))
    assert len(asked) == 4


def test_kept_choices_are_bounded(monkeypatch):
    monkeypatch.setattr("firesteel.kernels.op.chosen.MOST_CHOICES", 3)
    chosen = keeping_op([]).choose(CPU, None, Ledger())
    for size in range(2, 12):
        chosen(torch.ones(size))
        assert 1 <= len(chosen._choices) <= 3


class Launched:
    """A fake compiled Triton kernel."""

    __name__ = "fc1"
    hash = "abc"

    def __getitem__(self, grid):
        return lambda *args, **options: self


@pytest.mark.parametrize(("verdict", "is_met"), [("native-fp4", True), ("none", True), ("bf16", False)])
def test_required_verdict_is_checked_once_per_launched_artefact(monkeypatch, verdict, is_met):
    """A pinned tile or another shape launches machine code that was not proven at start."""
    judged, kernel = [], Launched()
    monkeypatch.setattr(
        "firesteel.kernels.op.chosen.judge_compiled", lambda compiled: judged.append(compiled) or verdict
    )
    op = toy_op()
    op.implementation("launching", needs=anywhere)(lambda x: launch_kernel(kernel, (1,), tile="64x128") or x * 2)
    op.prefer("launching")
    op.choose(CPU, None, Ledger(), Requirement("double", "launching"))(torch.ones(2))
    assert judged == []
    chosen = op.choose(CPU, None, Ledger(), Requirement("double", "launching", "native-fp4"))
    if is_met:
        chosen(torch.ones(2))
        chosen(torch.ones(2))
        assert judged == [kernel]
    else:
        with pytest.raises(KernelError, match=r"launching@native-fp4 is required, but fc1 64x128 .* and is bf16"):
            chosen(torch.ones(2))
