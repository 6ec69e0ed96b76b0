"""decode_fc2's kernel on emulated GPUs."""

from dataclasses import replace

import pytest
import torch

from firesteel.kernels.decode.fc2 import DecodeFc2Operands, decode_fc2, plan
from firesteel.kernels.operands.weights import random_experts
from firesteel.kernels.stream.plan import Machine
from firesteel.kernels.stream.shapes import Draw

LARGE, SMALL, TINY = Machine(3, 232_448), Machine(4, 101_376), Machine(3, 24_000)


def make_operands(tokens, hidden=64, intermediate=192, *, experts=8, active=4):
    draw = Draw(torch.device("cpu"))
    packed = random_experts(experts, hidden, intermediate, draw.generator)
    return DecodeFc2Operands(
        inner=draw.normal(tokens, active, intermediate),
        r=draw.normal(tokens, hidden),
        logits=draw.logits(tokens, experts),
        experts=packed,
    )


def test_experts_are_weighted_and_added_to_the_residual(hold_emulated):
    """Three CTAs share four strips."""
    hold_emulated(decode_fc2, LARGE, make_operands(2))


def test_logits_and_weights_are_read_before_the_inputs_are_ready(hold_early):
    hold_early(decode_fc2, LARGE, ("inner", "r"), make_operands(2))


def test_nan_reaches_every_value_of_its_token(hold_emulated):
    operands = make_operands(2)
    operands.inner[1, 3, 191] = float("nan")
    hold_emulated(decode_fc2, LARGE, operands)
    assert decode_fc2.reference(operands).isnan().all(1).tolist() == [False, True]


@pytest.mark.parametrize("tokens", [5, 8])
def test_little_shared_memory_holds_the_tokens_of_an_expert_and_two_stages(tokens, hold_emulated):
    machine = Machine(3, 55_000)
    stream = plan(machine, tokens=tokens, hidden=64, intermediate=1344, experts=8, active=4).stream
    assert (stream.stages, stream.num_held) == (2, 4)
    hold_emulated(decode_fc2, machine, make_operands(tokens, 64, 1344))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [5, 8])
def test_plans_of_a_gb10_at_real_widths(tokens, hold_emulated):
    hold_emulated(decode_fc2, SMALL, make_operands(tokens, 64, 2880))


@pytest.mark.slow
@pytest.mark.parametrize(("intermediate", "machine"), [(64, LARGE), (128, SMALL), (192, TINY)], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8])
def test_every_number_of_tokens(tokens, intermediate, machine, hold_emulated):
    hold_emulated(decode_fc2, machine, make_operands(tokens, 192, intermediate))


@pytest.mark.slow
@pytest.mark.parametrize("machine", [LARGE, SMALL], ids=str)
@pytest.mark.parametrize("intermediate", [1536, 1344, 768, 704, 384, 320])
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_widths_of_tensor_parallel_ranks(tokens, intermediate, machine, hold_emulated):
    """The parts of 2880 values among 2, 4 and 8 ranks: 5 to 12 warps of one to three steps."""
    hold_emulated(decode_fc2, machine, make_operands(tokens, 64, intermediate))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_one_active_expert_and_rounded_activations(tokens, hold_emulated):
    hold_emulated(decode_fc2, LARGE, make_operands(tokens, active=1))
    hold_emulated(decode_fc2, LARGE, replace(make_operands(tokens), activation="mxfp8"))


def test_tiny_machine_loads_one_expert_after_another():
    sizes = {"hidden": 192, "intermediate": 192, "experts": 8, "active": 4}
    held = [plan(machine, tokens=8, **sizes).kernel.source.defines["HOLDS_ALL"] for machine in (LARGE, TINY)]
    assert held == [True, False]
