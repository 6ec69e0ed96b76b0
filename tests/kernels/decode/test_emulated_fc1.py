"""decode_fc1's kernel on emulated GPUs."""

from dataclasses import replace

import pytest
import torch

from firesteel.kernels.decode.fc1 import DecodeFc1Operands, decode_fc1, plan
from firesteel.kernels.operands.weights import random_experts
from firesteel.kernels.stream.plan import Machine
from firesteel.kernels.stream.shapes import Draw

LARGE, SMALL = Machine(5, 232_448), Machine(4, 101_376)


def make_operands(tokens, hidden=1344, intermediate=24, *, experts=8, active=4, limit=7.0):
    """Builds operands with rows of 21 steps, three per warp, and three strips per expert."""
    draw = Draw(torch.device("cpu"))
    packed = random_experts(experts, hidden, max(intermediate, 32), draw.generator)
    rows = slice(2 * intermediate)
    parts = {name: getattr(packed, name)[:, rows] for name in ("gate_up_codes", "gate_up_scales", "gate_up_bias")}
    packed = replace(packed, **{name: part.contiguous() for name, part in parts.items()})
    return DecodeFc1Operands(
        r=draw.normal(tokens, hidden),
        norm=draw.normal(hidden),
        eps=1e-5,
        logits=draw.logits(tokens, experts),
        experts=packed,
        limit=limit,
        active=active,
    )


@pytest.mark.parametrize("limit", [7.0, 0.5])
@pytest.mark.parametrize("tokens", [3, 4])
def test_rows_are_multiplied_by_the_tokens_that_chose_them(tokens, limit, hold_emulated):
    hold_emulated(decode_fc1, LARGE, make_operands(tokens, limit=limit))


def test_only_the_norm_is_read_before_the_inputs_are_ready(hold_early):
    hold_early(decode_fc1, LARGE, ("r", "logits"), make_operands(3))


IN_TURNS = Machine(4, 50_000)


@pytest.mark.parametrize("tokens", [5, 8])
def test_little_shared_memory_holds_the_tokens_of_an_expert_and_two_stages(tokens, hold_emulated):
    """Eight experts for up to 32 pairs: some are chosen by more tokens than are held, and are read twice."""
    sizes = {"hidden": 1344, "intermediate": 24, "experts": 8, "active": 4}
    stream = plan(IN_TURNS, tokens=tokens, **sizes).stream
    assert (stream.stages, stream.num_held) == (2, 4)
    hold_emulated(decode_fc1, IN_TURNS, make_operands(tokens))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [5, 8])
def test_plans_of_a_gb10_at_real_widths(tokens, hold_emulated):
    hold_emulated(decode_fc1, SMALL, make_operands(tokens, 2880))


def test_residual_is_not_read_early_if_it_is_held_in_turns(hold_early):
    hold_early(decode_fc1, IN_TURNS, ("r", "logits"), make_operands(5))


def test_clamp_keeps_nan(hold_emulated):
    operands = make_operands(3)
    operands.r[1, 1343] = float("nan")
    hold_emulated(decode_fc1, LARGE, operands)
    assert decode_fc1.reference(operands).isnan().all((1, 2)).tolist() == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize(("hidden", "machine"), [(64, LARGE), (128, SMALL), (192, LARGE)], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8])
def test_every_number_of_tokens(tokens, hidden, machine, hold_emulated):
    hold_emulated(decode_fc1, machine, make_operands(tokens, hidden, 96))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_one_active_expert_and_rounded_activations(tokens, hold_emulated):
    hold_emulated(decode_fc1, LARGE, make_operands(tokens, 128, 96, active=1))
    hold_emulated(decode_fc1, LARGE, replace(make_operands(tokens, 128, 96), activation="mxfp8"))
