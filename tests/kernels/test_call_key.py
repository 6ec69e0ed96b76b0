"""Keys of op calls: what they distinguish, and that `accepts` of ops that keep their choice reads nothing else."""

from dataclasses import dataclass, fields, is_dataclass, replace

import pytest
import torch

from firesteel.formats import mxfp4
from firesteel.kernels.call_key import Described, make_key
from firesteel.kernels.operands.fed import Fed
from firesteel.kernels.operands.weights import Mxfp4Weight, random_experts
from firesteel.kernels.registry import NETWORK_OPS

X = torch.zeros(4, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(Described):
    first: torch.Tensor
    second: object


@pytest.mark.parametrize(
    "other",
    [
        (X[:3], 1.0, None, "auto"),
        (X.T.contiguous().T, 1.0, None, "auto"),
        (X.half(), 1.0, None, "auto"),
        (X.to("meta"), 1.0, None, "auto"),
        (X, 2.0, None, "auto"),
        (X, 1.0, X, "auto"),
        (X, 1.0, None, "16x64"),
        (X, 1.0, None),
        (X, 1.0, None, Pair(first=X, second="auto")),
    ],
)
def test_calls_that_differ_in_more_than_values_have_different_keys(other):
    key = make_key((X, 1.0, None, "auto"))
    assert key == make_key((X + 1, 1.0, None, "auto")) and hash(key) == hash(make_key((X + 1, 1.0, None, "auto")))
    assert make_key(other) not in (key, None)


def test_arguments_that_cannot_be_described_have_no_key():
    whole = torch.zeros(65)
    assert make_key((X, object())) is None and make_key(([X],)) is None
    assert make_key((whole[1:],)) is None, "not aligned"
    assert make_key((torch.nn.Parameter(X),)) is None, "a kind of tensor of its own"
    assert make_key((Pair(first=whole[1:], second=None),)) is None


def test_parts_of_an_argument_are_described_once_and_by_kind():
    codes, scales = mxfp4.quantize(torch.ones(4, 64))
    weight = Mxfp4Weight(codes=codes, scales=scales)
    same, other = replace(weight, codes=codes.clone()), replace(weight, codes=codes[:2], scales=scales[:2])
    assert make_key((weight,)) == make_key((same,)) != make_key((other,))
    assert weight.describe() is weight.describe()
    bf16 = Fed(values=X.bfloat16(), scales=None, activation="bf16")
    assert make_key((bf16,)) != make_key((replace(bf16, activation="mxfp8"),))


def test_experts_are_described_with_their_range_of_scales():
    """Once, experts that begin at an odd address had a key, the same for all sizes."""
    experts = random_experts(2, 32, 32, torch.Generator().manual_seed(1))
    wide = replace(experts, down_scales=torch.full_like(experts.down_scales, 254))
    assert make_key((experts,)) != make_key((wide,))
    odd = torch.zeros(experts.down_scales.numel() + 1, dtype=torch.uint8)[1:].view(experts.down_scales.shape)
    assert make_key((replace(experts, down_scales=odd),)) is None


def to_meta(value):
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if is_dataclass(value):
        return replace(value, **{part.name: to_meta(getattr(value, part.name)) for part in fields(value)})
    return value


@pytest.mark.parametrize("op", [op for op in NETWORK_OPS if op.keeps_choice], ids=lambda op: op.name)
def test_ops_that_keep_their_choice_read_no_value_of_a_tensor(op):
    """A tensor on the device `meta` has no values: reading one raises."""
    asked = 0
    for sample in op.make_samples(torch.device("cpu")):
        assert make_key(sample.args) is not None, sample.label
        for implementation in op.implementations.values():
            if implementation.accepts is not None:
                implementation.accepts(*map(to_meta, sample.args))
                asked += 1
    assert asked


def test_all_ops_of_the_network_keep_their_choice():
    assert all(op.keeps_choice for op in NETWORK_OPS)
