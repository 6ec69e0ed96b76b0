"""decode_fc2's kernel on emulated GPUs."""

import pytest
import torch

from firesteel.kernels.decode.fc2 import decode_fc2, plan
from firesteel.kernels.ops.moe_matmul import random_experts
from firesteel.kernels.stream.launch import Machine
from firesteel.kernels.stream.shapes import Draw

LARGE, SMALL, TINY = Machine(3, 232_448), Machine(4, 101_376), Machine(3, 24_000)


def make_args(tokens, hidden=64, intermediate=192, *, experts=8, active=4):
    draw = Draw(torch.device("cpu"))
    packed = random_experts(experts, hidden, intermediate, draw.generator)
    inner, r = draw.normal(tokens, active, intermediate), draw.normal(tokens, hidden)
    return inner, draw.logits(tokens, experts), packed, r


def test_experts_are_weighted_and_added_to_the_residual(hold_emulated):
    """Four strips for three programs."""
    hold_emulated(decode_fc2, LARGE, *make_args(2))


def test_logits_and_weights_are_read_before_the_inputs_are_there(hold_early):
    hold_early(decode_fc2, LARGE, ("inner", "r"), *make_args(2))


def test_what_is_no_number_reaches_all_of_its_token(hold_emulated):
    args = make_args(2)
    args[0][1, 3, 191] = float("nan")
    hold_emulated(decode_fc2, LARGE, *args)
    assert decode_fc2.reference(*args).isnan().all(1).tolist() == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize(("intermediate", "machine"), [(64, LARGE), (128, SMALL), (192, TINY)], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8])
def test_every_number_of_tokens(tokens, intermediate, machine, hold_emulated):
    hold_emulated(decode_fc2, machine, *make_args(tokens, 192, intermediate))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_warps_of_three_steps(tokens, hold_emulated):
    hold_emulated(decode_fc2, LARGE, *make_args(tokens, 64, 1344))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_one_active_expert_and_rounded_activations(tokens, hold_emulated):
    hold_emulated(decode_fc2, LARGE, *make_args(tokens, active=1))
    hold_emulated(decode_fc2, LARGE, *make_args(tokens), "mxfp8")


def test_a_tiny_machine_holds_one_expert_after_another():
    sizes = {"hidden": 192, "intermediate": 192, "experts": 8, "active": 4}
    held = [plan(machine, tokens=8, **sizes).kernel.source.defines["HOLDS_ALL"] for machine in (LARGE, TINY)]
    assert held == [True, False]
