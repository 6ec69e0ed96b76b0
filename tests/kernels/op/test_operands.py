"""Operands as one argument: copied for each use; they say how activations are rounded."""

from dataclasses import FrozenInstanceError, dataclass, replace

import pytest
import torch
from torch import Tensor

from firesteel.device import find_device
from firesteel.kernels.ledger import Ledger, Ran
from firesteel.kernels.op.op import anywhere, define_op
from firesteel.kernels.op.operands import Operands, RoundedOperands
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import fp32
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.registry import DECODE_OPS

CPU = find_device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOperands(RoundedOperands):
    x: Tensor
    weight: Mxfp4Weight | None = None
    factor: float = 2.0


def scale_op():
    @define_op(bytes=lambda operands: 2 * operands.x.nbytes, tolerance=fp32(why="toy"))
    def scale(operands: ScaleOperands) -> Tensor:
        return operands.x.mul_(operands.factor)

    @scale.implementation(
        "double", needs=anywhere, accepts=lambda operands: None if operands.factor == 2 else "only doubles"
    )
    def double(operands: ScaleOperands) -> Tensor:
        return operands.x.add_(operands.x)

    scale.prefer("double", "reference")
    return scale


def test_clone_copies_tensors_and_shares_packed_weights():
    packed = Mxfp4Weight(codes=torch.zeros(2, 16), scales=torch.zeros(2, 1))
    operands = ScaleOperands(x=torch.ones(3), weight=packed)
    sample = Sample("three", (operands,))
    scale_op().reference(*sample.clone())
    assert operands.x.tolist() == [1, 1, 1]
    cloned = operands.clone()
    assert cloned.weight is packed and cloned.factor == 2 and cloned.activation == "bf16"
    assert type(cloned) is ScaleOperands
    with pytest.raises(FrozenInstanceError):
        cloned.factor = 3.0


def test_an_op_chooses_and_notes_activations_by_its_operands():
    op, ledger = scale_op(), Ledger()
    chosen = op.choose(CPU, None, ledger)
    operands = ScaleOperands(x=torch.ones(3), activation="mxfp8")
    assert chosen(operands).tolist() == [2, 2, 2]
    assert chosen(replace(operands, factor=0.5, activation="bf16")).tolist() == [1, 1, 1]
    assert list(ledger.entries) == [Ran("scale", "double", "mxfp8"), Ran("scale", "reference", "bf16")]
    assert op.rounds_activations and op.find_activation((operands,)) == "mxfp8"


def test_operands_without_an_activation_round_none():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class PlainOperands(Operands):
        x: Tensor

    @define_op(bytes=lambda operands: operands.x.nbytes, tolerance=fp32(why="toy"))
    def plain(operands: PlainOperands) -> Tensor:
        return operands.x

    assert not plain.rounds_activations and plain.find_activation((PlainOperands(x=torch.ones(1)),)) == ""


@pytest.mark.parametrize("op", DECODE_OPS, ids=lambda op: op.name)
def test_decode_ops_take_operands_that_say_whether_a_launch_is_dependent(op):
    (operands,) = next(op.make_samples(torch.device("cpu"))).args
    assert isinstance(operands, Operands) and operands.dependent is False
    assert isinstance(operands, RoundedOperands) == op.rounds_activations


def test_operands_of_one_call_are_described_at_each_and_those_of_a_step_once():
    made, kept = ScaleOperands(x=torch.ones(3)), DECODE_OPS[0].make_samples(torch.device("cpu"))
    (lasting,) = next(kept).args
    assert made.describe() == made.describe() is not made.describe()
    assert lasting.describe() is lasting.describe() and lasting.describe() == lasting.clone().describe()
