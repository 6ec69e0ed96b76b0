"""Implementations that promise the same bits in every call keep the promise, and one that breaks it is found."""

from dataclasses import fields, is_dataclass, replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.kernels.op.invariance import list_invariant
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.linear_operands import LinearOperands
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.rope_kv_write import rope_kv_write
from firesteel.kernels.ops.route import route
from firesteel.kernels.proof.row_invariance import check_rows, list_parts
from firesteel.kernels.proof.verify import Status, check_sample, tensors
from firesteel.kernels.registry import NETWORK_OPS

CPU = find_device("cpu")
FEW_VALUES = 200_000  # of a sample's largest tensor, so that a check takes seconds


def widened(value):
    """Returns activations in float32, as the network on a CPU has them; weights stay as they are stored."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype == torch.bfloat16 else value
    if is_dataclass(value) and type(value).__name__.endswith("Operands"):
        return replace(value, **{part.name: widened(getattr(value, part.name)) for part in fields(value)})
    return value


def samples_on_cpu(op):
    """Yields small samples; of rope_kv_write, whose pages are large, the one with the fewest tokens."""
    for sample in op.make_samples(torch.device("cpu")):
        largest = max(part.numel() for part in tensors(sample.args))
        if largest <= FEW_VALUES or sample.label.startswith(("mixed with", "T=20")):
            yield Sample(sample.label, (widened(sample.args[0]),))


def promising(op):
    return [way for way in op.implementations.values() if way.is_row_invariant and way.needs(CPU) is None]


@pytest.mark.parametrize("op", NETWORK_OPS, ids=lambda op: op.name)
def test_every_op_has_one_invariant_implementation_on_a_cpu_and_one_on_a_gpu(op):
    assert op.rows is not None
    assert [way.name for way in promising(op)] == (["reference"] if op is rope_kv_write else ["torch:invariant"])
    names = {way.name for way in op.implementations.values() if way.is_row_invariant}
    assert names & {"triton", "triton:invariant"} or op is rope_kv_write


@pytest.mark.parametrize("op", NETWORK_OPS, ids=lambda op: op.name)
def test_rows_have_the_same_bits_alone_and_among_others(op):
    (way,) = promising(op)
    outcomes = [check_rows(op, way, sample) for sample in samples_on_cpu(op)]
    outcomes = [outcome for outcome in outcomes if outcome is not None]
    assert outcomes and all(outcome.status is Status.PASSED for outcome in outcomes), outcomes


@pytest.mark.parametrize("op", NETWORK_OPS, ids=lambda op: op.name)
def test_invariant_implementations_equal_the_reference(op):
    (way,) = promising(op)
    for sample in samples_on_cpu(op):
        if way.name != "reference":
            outcome = check_sample(op, way, sample)
            assert outcome.status is Status.PASSED, outcome


def draw(tokens=40, rows=48, columns=64):
    generator = torch.Generator().manual_seed(3)
    x, weight = (torch.randn(count, columns, generator=generator) for count in (tokens, rows))
    return Sample(f"T={tokens}", (LinearOperands(x=x, weight=weight),))


def planted(change):
    """Returns an implementation of linear that promises invariance and changes the result by the call's rows."""
    way = linear.implementations["torch:invariant"]

    def function(operands):
        y = way.function(operands)
        change(y)
        return y

    return replace(way, name="planted", function=function)


def flip(y, row):
    y.view(torch.int32)[row, 5] ^= 1


@pytest.mark.parametrize(
    "change",
    [
        lambda y: flip(y, 0) if len(y) == 1 else None,
        lambda y: flip(y, -1) if len(y) > 16 else None,
        lambda y: flip(y, 7) if len(y) > 7 else None,
        lambda y: flip(y, slice(None)) if len(y) == 40 else None,
    ],
    ids=["one row", "last of many", "by place", "by number"],
)
def test_planted_dependence_of_one_bit_is_found(change):
    outcome = check_rows(linear, planted(change), draw())
    assert outcome.status is Status.FAILED and "other bits" in outcome.failure
    assert "in 1 of 192 bytes" in outcome.failure
    assert check_rows(linear, planted(lambda y: None), draw()).status is Status.PASSED


def test_attention_that_depends_on_the_number_of_requests_is_found():
    way = replace(attention.implementations["torch:invariant"], function=vary_by_requests)
    sample = next(sample for sample in samples_on_cpu(attention) if "mixed" in sample.label)
    assert check_rows(attention, way, sample).status is Status.FAILED


def vary_by_requests(operands):
    y = attention.implementations["torch:invariant"].function(operands)
    return y * (1 + 2.0**-20 * (operands.page_table.shape[0] > 2))


def test_nothing_is_checked_without_a_promise_or_with_one_row():
    way = linear.implementations["torch:invariant"]
    assert check_rows(linear, replace(way, is_row_invariant=False), draw()) is None
    assert check_rows(linear, way, draw(tokens=1)) is None


def test_parts_are_single_rows_neighbours_and_scattered_rows_of_several_sizes():
    parts = list(list_parts(40))
    assert all(len(set(part)) == len(part) and set(part) <= set(range(40)) for part in parts)
    assert {len(part) for part in parts} == {1, 2, 7, 16, 17, 39, 40}
    assert any(part != sorted(part) for part in parts)


def test_padding_is_no_row_of_route():
    sample = next(sample for sample in route.make_samples(torch.device("cpu")) if "T=3 E=32, 2" in sample.label)
    assert route.rows.count(sample.args[0]) == 1


def test_kept_queries_see_the_keys_that_they_saw():
    sample = next(sample for sample in attention.make_samples(torch.device("cpu")) if "mixed" in sample.label)
    (operands,) = sample.args
    kept = attention.rows.keep(operands, [33, 0, 5, 6, 1])
    assert kept.query_starts.tolist() == [0, 1, 2, 4, 5]
    assert kept.kv_lens.tolist() == [150, 200, 123, 118]
    assert torch.equal(kept.page_table[0], operands.page_table[2])
    assert torch.equal(kept.page_table[1], operands.page_table[0])


@pytest.mark.parametrize(
    ("op", "label"),
    [(linear, "T=131 72x128"), (route, "T=65 E=128"), (moe_matmul, "T=65 E=5 160x96 bf16"), (attention, "mixed")],
    ids=lambda value: getattr(value, "name", ""),
)
def test_interpreted_kernels_give_rows_the_same_bits(op, label, call_interpreted):
    """Shows that no index or mask of a kernel depends on other rows; the order inside an instruction is a GPU's."""
    sample = next(s for s in op.make_samples(torch.device("cpu")) if s.label.startswith(label))
    (operands,) = sample.args
    last = op.rows.count(operands) - 1
    parts = [[0], [5, 6, 7], [last, 2], [*range(1, 19), last]]
    kept = [operands, *(op.rows.keep(operands, part) for part in parts)]
    results = call_interpreted(op, "triton:invariant", [Sample("", (own,)) for own in kept])
    results = [op.rows.results(own, result) for own, result in zip(kept, results, strict=True)]
    for part, actual in zip(parts, results[1:], strict=True):
        assert all(torch.equal(whole[part], rows) for whole, rows in zip(results[0], actual, strict=True)), part


@pytest.mark.parametrize("label", ["T=65 S=16 torch.bfloat16", "T=20 S=16 torch.float8_e4m3fn 3 not stored"])
def test_interpreted_rope_kv_write_gives_rows_the_same_bits(label, call_interpreted):
    """The queries and what is read back from the slots; slots that are not written keep what they held."""
    sample = next(s for s in rope_kv_write.make_samples(torch.device("cpu")) if s.label.startswith(label))
    (operands,) = sample.args
    operands = replace(operands, positions=operands.positions % 64, table=operands.table[:64].clone())
    last = rope_kv_write.rows.count(operands) - 1
    parts = [[0], [last], [5, 6, 7], [last, 2, 11], list(range(last, -1, -1))]
    kept = [operands, *(rope_kv_write.rows.keep(operands, part) for part in parts)]
    results = call_interpreted(rope_kv_write, "triton", [Sample("", (own,)) for own in kept])
    rows = [rope_kv_write.rows.results(own, result) for own, result in zip(kept, results, strict=True)]
    assert rows[0][1].any() and rows[0][2].any(), "keys and values must be read where they were stored"
    for part, actual in zip(parts, rows[1:], strict=True):
        assert all(torch.equal(whole[part], few) for whole, few in zip(rows[0], actual, strict=True)), part
    for own, result in zip(kept, results, strict=True):
        stored = torch.zeros(operands.k_pages.shape[0] * operands.k_pages.shape[2], dtype=torch.bool)
        stored[own.slots[own.slots >= 0]] = True
        for before, after in ((own.k_pages, result[1]), (own.v_pages, result[2])):
            slots = [pages.view(torch.uint8).transpose(1, 2).flatten(0, 1) for pages in (before, after)]
            assert torch.equal(slots[0][~stored], slots[1][~stored])


@pytest.mark.gpu
@pytest.mark.parametrize("op", NETWORK_OPS, ids=lambda op: op.name)
def test_rows_have_the_same_bits_on_a_gpu(op):
    device = find_device("cuda")
    ways = [way for way in list_invariant(op) if way.needs(device) is None]
    assert ways[0].name != "reference"
    outcomes = [check_rows(op, way, s) for s in op.make_samples(device.torch_device) for way in ways]
    outcomes = [outcome for outcome in outcomes if outcome is not None]
    assert any(outcome.status is Status.PASSED for outcome in outcomes)
    assert not [outcome for outcome in outcomes if outcome.status is Status.FAILED]
