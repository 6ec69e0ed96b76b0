"""decode_o's kernel on an emulated GPU: split and whole rows, late inputs, NaN."""

from dataclasses import replace

import pytest
import torch

from firesteel.kernels.decode.o import DecodeOOperands, decode_o, plan
from firesteel.kernels.stream.plan import Machine
from firesteel.kernels.stream.shapes import Draw

LARGE, SMALL = Machine(3, 232_448), Machine(2, 101_376)
PACKED = {True: "mxfp4", False: "bf16"}


def make_operands(tokens, rows, columns, is_fp4):
    draw = Draw(torch.device("cpu"))
    weight = draw.mxfp4_weight(rows, columns) if is_fp4 else draw.weight(rows, columns)
    return DecodeOOperands(
        bias=draw.normal(rows, scale=0.1),
        mixed=draw.normal(tokens, columns),
        weight=weight,
        r=draw.normal(tokens, rows),
    )


@pytest.mark.parametrize(("tokens", "is_fp4"), [(1, True), (3, False), (4, False)], ids=str)
def test_strips_that_do_not_divide_evenly(tokens, is_fp4, hold_emulated):
    """Three CTAs share seven strips; rows have 21 steps, three per warp, or two parts."""
    hold_emulated(decode_o, LARGE, make_operands(tokens, 112, 1344, is_fp4))


@pytest.mark.parametrize("is_fp4", [True, False], ids=PACKED.get)
def test_only_the_weight_is_read_before_the_inputs_are_ready(is_fp4, hold_early):
    operands = make_operands(1 if is_fp4 else 3, 112, 1344, is_fp4)
    hold_early(decode_o, LARGE, ("mixed", "bias", "r"), operands)


@pytest.mark.parametrize(("tokens", "is_fp4"), [(1, True), (3, False)], ids=str)
def test_nan_reaches_every_value_of_its_token(tokens, is_fp4, hold_emulated):
    operands = make_operands(tokens, 112, 1344, is_fp4)
    operands.mixed[-1, 700] = float("nan")
    hold_emulated(decode_o, LARGE, operands)
    assert decode_o.reference(operands)[-1].isnan().all()


def test_rows_are_split_like_those_of_the_real_size():
    """Real rows take 15 warps of three steps each; these take seven, or 14 if rows are split."""
    packed, plain = (
        plan(LARGE, is_fp4=is_fp4, tokens=1, hidden=112, columns=1344).stream for is_fp4 in (True, False)
    )
    assert (packed.warps, packed.steps_each, packed.stride) == (7, 3, packed.row_bytes)
    assert (plain.warps, plain.steps_each, plain.chunks) == (14, 3, 2)


@pytest.mark.parametrize(
    ("tokens", "is_fp4", "shared_bytes", "held", "chunks"),
    [(3, True, 33_000, 1, 1), (8, True, 40_000, 1, 1), (6, False, 60_000, 8, 6)],
    ids=str,
)
def test_little_shared_memory_still_holds_two_stages(tokens, is_fp4, shared_bytes, held, chunks, hold_emulated):
    """As on a GB10: x of one token at a time before packed weights, smaller parts of rows of bf16."""
    machine = Machine(3, shared_bytes)
    stream = plan(machine, is_fp4=is_fp4, tokens=tokens, hidden=112, columns=1344).stream
    assert (stream.stages, stream.num_held, stream.chunks) == (2, held, chunks)
    hold_emulated(decode_o, machine, make_operands(tokens, 112, 1344, is_fp4))


def test_nan_reaches_its_token_alone_if_tokens_are_held_one_by_one(hold_emulated):
    operands = make_operands(6, 112, 1344, True)
    operands.mixed[2, 700] = float("nan")
    hold_emulated(decode_o, Machine(3, 40_000), operands)
    assert decode_o.reference(operands).isnan().all(1).tolist() == [False, False, True, False, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("is_fp4", [True, False], ids=PACKED.get)
@pytest.mark.parametrize("tokens", [4, 5, 8])
def test_plans_of_a_gb10_at_real_widths(tokens, is_fp4, hold_emulated):
    hold_emulated(decode_o, SMALL, make_operands(tokens, 48, 4096, is_fp4))


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "machine"), [(64, LARGE), (128, SMALL), (192, LARGE), (1152, SMALL)], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("is_fp4", [True, False], ids=PACKED.get)
def test_every_number_of_tokens_and_split_of_rows(tokens, columns, is_fp4, machine, hold_emulated):
    hold_emulated(decode_o, machine, make_operands(tokens, 112, columns, is_fp4))


@pytest.mark.slow
@pytest.mark.parametrize("machine", [LARGE, SMALL], ids=str)
@pytest.mark.parametrize("columns", [2048, 1024, 512])
@pytest.mark.parametrize("tokens", [1, 3, 8])
@pytest.mark.parametrize("is_fp4", [True, False], ids=PACKED.get)
def test_widths_of_tensor_parallel_ranks(tokens, columns, is_fp4, machine, hold_emulated):
    hold_emulated(decode_o, machine, make_operands(tokens, 48, columns, is_fp4))


@pytest.mark.slow
@pytest.mark.parametrize("columns", [128, 1344])
@pytest.mark.parametrize("tokens", [1, 2, 3, 8])
def test_rounded_activations(tokens, columns, hold_emulated):
    hold_emulated(decode_o, LARGE, replace(make_operands(tokens, 48, columns, True), activation="mxfp8"))
