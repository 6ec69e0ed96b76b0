"""decode_lm_head's kernel on an emulated GPU: logits, the best of each CTA, ties, NaN."""

import importlib
from dataclasses import replace

import pytest
import torch

from firesteel.kernels.decode.lm_head import DecodeLmHeadOperands, decode_lm_head, find_best, plan
from firesteel.kernels.stream.plan import Machine
from firesteel.kernels.stream.shapes import Draw

LARGE, SMALL = Machine(4, 232_448), Machine(3, 101_376)
PACKED = {True: "mxfp4", False: "bf16"}


@pytest.fixture
def hold(hold_emulated, monkeypatch):
    """Compares kernel and reference, which takes the number of CTAs into account."""

    def hold_it(machine, operands, way="cuda"):
        module = importlib.import_module("firesteel.kernels.decode.lm_head")
        monkeypatch.setattr(module, "count_best", lambda r, weight: min(machine.num_sms, weight.shape[0] // 16))
        hold_emulated(decode_lm_head, machine, operands, way=way)

    return hold_it


def make_operands(tokens, hidden, is_fp4, vocabulary=144):
    draw = Draw(torch.device("cpu"))
    weight = draw.mxfp4_weight(vocabulary, hidden) if is_fp4 else draw.weight(vocabulary, hidden)
    return DecodeLmHeadOperands(r=draw.normal(tokens, hidden), norm=draw.normal(hidden), eps=1e-5, weight=weight)


@pytest.mark.parametrize(("tokens", "is_fp4"), [(2, True), (1, False)], ids=str)
def test_logits_and_the_best_of_each_cta(tokens, is_fp4, hold):
    """Four CTAs share nine strips."""
    hold(LARGE, make_operands(tokens, 192, is_fp4))


def test_one_token_and_packed_rows_of_several_steps_per_warp(hold):
    """A product takes four groups side by side, so that every lane holds a part of a row."""
    hold(LARGE, make_operands(1, 1152, True))


def test_little_shared_memory_holds_four_tokens_at_a_time_and_two_stages(hold):
    machine = Machine(3, 48_000)
    stream = plan(machine, is_fp4=True, tokens=7, hidden=1344, vocabulary=144).stream
    assert (stream.stages, stream.num_held) == (2, 4)
    hold(machine, replace(make_operands(7, 1344, True), activation="mxfp8"))


def test_the_best_are_those_of_its_own_logits(use_machine):
    use_machine(LARGE)
    logits, best = decode_lm_head.implementations["cuda"].function(make_operands(2, 192, True))
    assert torch.equal(best, find_best(logits, 4))


def test_lowest_id_wins_among_equal_logits(use_machine):
    """All rows and logits are equal, so each CTA's best is the first row of its first strip."""
    use_machine(LARGE)
    operands = make_operands(2, 192, True)
    codes, scales = operands.weight.codes, operands.weight.scales
    codes[:], scales[:] = codes[:1].clone(), scales[:1].clone()
    logits, best = decode_lm_head.implementations["cuda"].function(operands)
    assert logits.amax(1).equal(logits.amin(1))
    assert (~best & 0xFFFFFFFF).tolist() == [[first, first] for first in (0, 16, 32, 48)]


@pytest.mark.parametrize(("tokens", "is_fp4"), [(2, True), (1, False)], ids=str)
def test_nan_is_best_and_is_detected(tokens, is_fp4, use_machine):
    use_machine(LARGE)
    operands = make_operands(tokens, 192, is_fp4)
    operands.r[0, 100] = float("nan")
    logits, best = decode_lm_head.implementations["cuda"].function(operands)
    assert logits[0].isnan().all() and not logits[1:].isnan().any()
    assert ((best[:, 0] >> 32) > torch.tensor(float("inf")).view(torch.int32)).all()


@pytest.mark.parametrize(("tokens", "is_fp4"), [(2, True), (1, False)], ids=str)
def test_only_weight_and_norm_are_read_before_the_inputs_are_ready(tokens, is_fp4, hold_early, monkeypatch):
    module = importlib.import_module("firesteel.kernels.decode.lm_head")
    monkeypatch.setattr(module, "count_best", lambda r, weight: 4)
    hold_early(decode_lm_head, LARGE, ("r",), make_operands(tokens, 192, is_fp4))


@pytest.mark.slow
@pytest.mark.parametrize(("hidden", "machine"), [(64, LARGE), (128, SMALL), (320, LARGE), (1344, SMALL)], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("is_fp4", [True, False], ids=PACKED.get)
def test_every_number_of_tokens_and_split_of_rows(tokens, hidden, is_fp4, machine, hold):
    hold(machine, make_operands(tokens, hidden, is_fp4))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 3, 5])
def test_rounded_activations(tokens, hold):
    hold(LARGE, replace(make_operands(tokens, 192, True), activation="mxfp8"))


@pytest.mark.slow
def test_fewer_strips_than_ctas(hold):
    hold(LARGE, make_operands(2, 192, True, vocabulary=32))


ROWS = decode_lm_head.implementations["cuda:rows"]


@pytest.mark.parametrize("hidden", [192, 1344])
def test_one_token_by_rows(hidden, hold):
    """A row takes some of a warp's lanes, or several rounds of all of them."""
    hold(LARGE, make_operands(1, hidden, False), way="cuda:rows")


def test_by_rows_the_residual_may_come_late(hold_early, monkeypatch):
    module = importlib.import_module("firesteel.kernels.decode.lm_head")
    monkeypatch.setattr(module, "count_best", lambda r, weight: LARGE.num_sms)
    hold_early(decode_lm_head, LARGE, ("r",), make_operands(1, 192, False), way="cuda:rows")


def test_by_rows_nan_is_best(use_machine):
    use_machine(LARGE)
    operands = make_operands(1, 192, False)
    operands.weight[37, 5] = float("nan")
    logits, best = ROWS.function(operands)
    assert logits.isnan().nonzero().tolist() == [[0, 37]] and ~int(best.max()) & 0xFFFFFFFF == 37


def test_by_rows_is_the_default_if_it_accepts_the_operands():
    for tokens, is_fp4, way in ((1, False, "cuda:rows"), (2, False, "cuda"), (1, True, "cuda")):
        usable = (decode_lm_head.implementations[name] for name in decode_lm_head.order)
        operands = make_operands(tokens, 192, is_fp4)
        assert next(candidate.name for candidate in usable if candidate.accepts(operands) is None) == way


def test_by_rows_is_for_one_token_in_bf16():
    assert ROWS.accepts(make_operands(2, 192, False)) == "is for one token and bf16 weights"
    assert ROWS.accepts(make_operands(1, 192, True)) == "is for one token and bf16 weights"
    assert ROWS.accepts(make_operands(1, 192, False)) is None


@pytest.mark.slow
@pytest.mark.parametrize("machine", [LARGE, SMALL, Machine(20, 232_448)], ids=["large", "small", "many"])
@pytest.mark.parametrize("hidden", [64, 256, 320, 2880])
def test_rows_of_every_length(hidden, machine, hold):
    hold(machine, make_operands(1, hidden, False), way="cuda:rows")
