"""decode_experts=cuda:passed on emulated GPUs: shared strips, few and many strips, late inputs."""

import ctypes
from dataclasses import replace

import pytest
import torch

from firesteel.kernels.decode.experts import MXFP8_TOLERANCE, DecodeExpertsOperands, decode_experts
from firesteel.kernels.decode.experts_plan import plan_passed
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.operands.weights import random_experts
from firesteel.kernels.proof.verify import check
from firesteel.kernels.stream.build import with_delays
from firesteel.kernels.stream.plan import Machine, machine_of
from firesteel.kernels.stream.shapes import Draw
from tests.kernels.decode.test_emulated_experts import PAIRED, make_operands

SMALL = Machine(5, 8_500)  # no pairs, a ring of three stages, as a GB10 has
SIZES = {"hidden": 2880, "experts": 128, "active": 4}
PASSED = decode_experts.implementations["cuda:passed"]


def test_emulated_machines_split_small_sizes_as_real_gpus_split_real_sizes():
    def find(machine, hidden, experts):
        plan = plan_passed(machine, hidden=hidden, experts=experts, active=4)
        return plan.is_paired, plan.stream.stages

    assert find(PAIRED, 192, 40) == find(machine_of((9, 0)), 2880, 128) == (True, 8)
    assert find(SMALL, 192, 40) == find(machine_of((12, 1)), 2880, 128) == (False, 3)


@pytest.mark.parametrize("machine", [PAIRED, SMALL], ids=["pairs", "three stages"])
def test_one_token(machine, hold_emulated):
    for routing in ("any", "equal"):
        hold_emulated(decode_experts, machine, make_operands(1, routing), way="cuda:passed")


def test_only_the_norm_is_read_before_the_inputs_are_ready(hold_early):
    hold_early(decode_experts, PAIRED, ("r", "logits"), make_operands(1), way="cuda:passed")


def test_nan_reaches_every_value_of_its_token(hold_emulated):
    operands = make_operands(1)
    operands.r[0, 3] = float("nan")
    hold_emulated(decode_experts, PAIRED, operands, way="cuda:passed")


def changed_operands(number):
    """Returns operands that no earlier launch had, so that leftovers of one are wrong."""
    operands = make_operands(1)
    return replace(operands, r=operands.r * (number + 2), logits=operands.logits.roll(number, -1))


@pytest.mark.parametrize("machine", [PAIRED, SMALL], ids=["pairs", "three stages"])
def test_ctas_wait_for_what_others_write(machine, hold_emulated):
    for number in range(4):
        hold_emulated(decode_experts, machine, changed_operands(number), way="cuda:passed")


def test_launch_number_wraps_around_after_16_bits(hold_emulated, emulator):
    hold_emulated(decode_experts, PAIRED, changed_operands(0), way="cuda:passed")
    planned = plan_passed(PAIRED, hidden=192, experts=40, active=4)
    launches = emulator.find_variable(planned.kernel, "launches", ctypes.c_uint32 * planned.num_ctas)
    assert len(set(launches)) == 1 and 0 < launches[0] < 0xFFFD
    launches[:] = [0xFFFD] * planned.num_ctas
    for number in range(1, 4):
        hold_emulated(decode_experts, PAIRED, changed_operands(number), way="cuda:passed")
    assert len(set(launches)) == 1 and launches[0] > 0xFFFF


@pytest.mark.parametrize(("tokens", "way"), [(1, "cuda:passed"), (2, "cuda:even"), (8, "cuda:even")])
def test_passed_is_the_default_for_one_token(tokens, way):
    usable = (decode_experts.implementations[name] for name in decode_experts.order)
    operands = make_operands(tokens)
    assert next(candidate.name for candidate in usable if candidate.accepts(operands) is None) == way


def test_more_tokens_are_refused():
    assert PASSED.accepts(make_operands(2)) == "is for one token, not 2"


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [64, 128, 320])
@pytest.mark.parametrize("programs", [2, 3, 4, 6, 7, 8, 20])
def test_every_split_of_strips(hidden, programs, hold_emulated):
    hold_emulated(
        decode_experts, Machine(programs, 232_448), make_operands(1, hidden=hidden, experts=8), way="cuda:passed"
    )


@pytest.mark.slow
@pytest.mark.parametrize("active", [1, 2, 3])
@pytest.mark.parametrize("machine", [PAIRED, SMALL], ids=["pairs", "three stages"])
def test_fewer_active_experts(machine, active, hold_emulated):
    hold_emulated(decode_experts, machine, make_operands(1, active=active), way="cuda:passed")


@pytest.mark.slow
def test_rounded_activations(hold_emulated):
    hold_emulated(decode_experts, PAIRED, replace(make_operands(1), activation="mxfp8"), way="cuda:passed")


@pytest.mark.slow
def test_warps_of_three_steps_as_in_the_real_size(hold_emulated):
    operands = make_operands(1, hidden=1344, experts=8)
    hold_emulated(decode_experts, Machine(44, 232_448), operands, way="cuda:passed")


def on_gpu():
    """Returns operands of the real sizes on a GPU."""
    draw = Draw(torch.device("cuda"))
    return DecodeExpertsOperands(
        experts=random_experts(128, 2880, 2880, draw.generator),
        r=draw.normal(1, 2880),
        norm=draw.normal(2880),
        eps=1e-5,
        logits=draw.logits(1, 128),
        limit=7.0,
        active=4,
    )


@pytest.mark.gpu
@pytest.mark.parametrize(("activation", "tolerance"), [("bf16", None), ("mxfp8", MXFP8_TOLERANCE)])
def test_real_shapes_on_a_gpu(activation, tolerance):
    sample = Sample("real", (replace(on_gpu(), activation=activation),), tolerance)
    assert check(decode_experts, PASSED, sample) is None


@pytest.mark.gpu
def test_same_bits_with_delays_on_a_gpu():
    operands = on_gpu()
    first = PASSED.function(operands.clone())
    for _ in range(20):
        with with_delays():
            assert torch.equal(first, PASSED.function(operands.clone()))


def test_launches_with_other_numbers_of_ctas_have_their_own_counters():
    """A counter continues from launch to launch: shared by other numbers of CTAs it would open too early."""
    sources = [plan_passed(Machine(programs, 232_448), **SIZES).kernel.source for programs in (170, 4)]
    assert [source.defines["NUM_CTAS"] for source in sources] == [170, 4]
