"""decode_experts=cuda:passed on emulated GPUs: strips shared or not, few strips and many, late inputs."""

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


def test_the_machines_do_with_small_sizes_what_real_ones_do_with_real_sizes():
    def find(machine, hidden, experts):
        found = plan_passed(machine, hidden=hidden, experts=experts, active=4)
        return found.is_paired, found.stream.stages

    assert find(PAIRED, 192, 40) == find(machine_of((9, 0)), 2880, 128) == (True, 8)
    assert find(SMALL, 192, 40) == find(machine_of((12, 1)), 2880, 128) == (False, 3)


@pytest.mark.parametrize("machine", [PAIRED, SMALL], ids=["pairs", "three stages"])
def test_one_token(machine, hold_emulated):
    for routing in ("any", "equal"):
        hold_emulated(decode_experts, machine, make_operands(1, routing), way="cuda:passed")


def test_only_the_norm_is_read_before_the_inputs_are_there(hold_early):
    hold_early(decode_experts, PAIRED, ("r", "logits"), make_operands(1), way="cuda:passed")


def test_what_is_no_number_reaches_all_of_its_token(hold_emulated):
    operands = make_operands(1)
    operands.r[0, 3] = float("nan")
    hold_emulated(decode_experts, PAIRED, operands, way="cuda:passed")


def changed_operands(number):
    """As no launch before had them: what one left behind is wrong."""
    operands = make_operands(1)
    return replace(operands, r=operands.r * (number + 2), logits=operands.logits.roll(number, -1))


@pytest.mark.parametrize("machine", [PAIRED, SMALL], ids=["pairs", "three stages"])
def test_programs_read_what_others_wrote_and_no_sooner(machine, hold_emulated):
    for number in range(4):
        hold_emulated(decode_experts, machine, changed_operands(number), way="cuda:passed")


def test_the_number_of_a_launch_begins_anew_after_16_bits(hold_emulated, emulator):
    hold_emulated(decode_experts, PAIRED, changed_operands(0), way="cuda:passed")
    planned = plan_passed(PAIRED, hidden=192, experts=40, active=4)
    launches = emulator.find_variable(planned.kernel, "launches", ctypes.c_uint32 * planned.num_ctas)
    assert len(set(launches)) == 1 and 0 < launches[0] < 0xFFFD
    launches[:] = [0xFFFD] * planned.num_ctas
    for number in range(1, 4):
        hold_emulated(decode_experts, PAIRED, changed_operands(number), way="cuda:passed")
    assert len(set(launches)) == 1 and launches[0] > 0xFFFF


@pytest.mark.parametrize(("tokens", "way"), [(1, "cuda:passed"), (2, "cuda:even"), (8, "cuda:even")])
def test_it_is_what_runs_for_one_token_where_nothing_is_named(tokens, way):
    usable = (decode_experts.implementations[name] for name in decode_experts.order)
    assert next(one.name for one in usable if one.accepts(make_operands(tokens)) is None) == way


def test_more_tokens_are_refused():
    assert PASSED.accepts(make_operands(2)) == "is for one token, not 2"


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [64, 128, 320])
@pytest.mark.parametrize("programs", [2, 3, 4, 6, 7, 8, 20])
def test_every_way_to_share_strips(hidden, programs, hold_emulated):
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
    """Operands at the real sizes."""
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


def test_programs_of_another_number_have_counters_of_their_own():
    """A counter goes on from launch to launch: with another number of programs it would let some go too soon."""
    sources = [plan_passed(Machine(programs, 232_448), **SIZES).kernel.source for programs in (170, 4)]
    assert [source.defines["NUM_CTAS"] for source in sources] == [170, 4]
