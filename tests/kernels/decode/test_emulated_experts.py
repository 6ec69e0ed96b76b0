"""decode_experts on emulated GPUs, whichever kernel takes the tokens: the same experts or others, bounds, sizes."""

import itertools
from dataclasses import replace

import pytest
import torch

from firesteel.kernels.decode.experts import MXFP8_TOLERANCE, DecodeExpertsOperands, decode_experts
from firesteel.kernels.decode.experts_plan import plan_even
from firesteel.kernels.decode.fc2 import refuse_strips
from firesteel.kernels.op.tolerance import assert_close
from firesteel.kernels.operands.weights import random_experts
from firesteel.kernels.proof.verify import check
from firesteel.kernels.stream import shapes as decode_shapes
from firesteel.kernels.stream.build import with_all_arriving
from firesteel.kernels.stream.plan import Machine, machine_of
from firesteel.kernels.stream.shapes import Draw

HIDDEN, EXPERTS, ACTIVE = 192, 40, 4
PAIRED = Machine(10, 232_448)  # 12 strips for five pairs of CTAs: three for some, two for others
SMALL = Machine(5, 101_376)  # an expert multiplies 4 tokens at a time
ROUTINGS = ("any", "the same", "all others", "half", "equal")


def route(routing, tokens, draw, experts=EXPERTS, active=ACTIVE):
    """Returns logits: random, same experts for all tokens, disjoint experts, half shared by neighbours, or ties."""
    logits = draw.logits(tokens, experts)
    apart = {"the same": 0, "all others": active, "half": active // 2}
    if routing == "equal":
        logits[:] = 0
        logits[:, 1 : 1 + active] = 1
    elif routing in apart:
        for token in range(tokens):
            logits[token, (apart[routing] * token + torch.arange(active)) % experts] += 100
    return logits


def make_operands(tokens, routing="any", *, hidden=HIDDEN, experts=EXPERTS, active=ACTIVE):
    draw = Draw(torch.device("cpu"))
    packed = random_experts(experts, hidden, hidden, draw.generator)
    logits = route(routing, tokens, draw, experts, active)
    return DecodeExpertsOperands(
        r=draw.normal(tokens, hidden),
        norm=draw.normal(hidden),
        eps=1e-5,
        logits=logits,
        experts=packed,
        limit=7.0,
        active=active,
    )


def find_way(tokens):
    return "cuda:passed" if tokens == 1 else "cuda:even"


def test_paired_ctas_wait_for_all_lanes_if_all_lanes_arrive(hold_emulated):
    with with_all_arriving():
        hold_emulated(decode_experts, PAIRED, make_operands(1), way="cuda:passed")


def test_as_many_tokens_meet_an_expert_as_on_real_machines():
    def find_width(machine, hidden=HIDDEN, experts=EXPERTS):
        planned = plan_even(machine, tokens=8, hidden=hidden, experts=experts, active=ACTIVE)
        return planned.kernel.source.defines["MOST_WIDTH"]

    assert find_width(PAIRED) == find_width(machine_of((9, 0)), 2880, 128) == 8
    assert find_width(SMALL) == find_width(machine_of((12, 1)), 2880, 128) == 4


@pytest.mark.parametrize(
    ("tokens", "routing"), [(5, "any"), (8, "the same"), (8, "all others"), (8, "half")], ids=str
)
def test_tokens_with_same_and_different_experts(tokens, routing, hold_emulated):
    hold_emulated(decode_experts, PAIRED, make_operands(tokens, routing), way="cuda:even")


def test_expert_with_more_tokens_than_fit_at_once_is_read_twice(hold_emulated):
    hold_emulated(decode_experts, SMALL, make_operands(8, "the same"), way="cuda:even")


@pytest.mark.parametrize("routing", ["any", "the same", "half"])
def test_little_shared_memory_holds_the_tokens_of_an_expert_and_two_stages(routing, hold_emulated):
    machine = Machine(5, 12_500)
    stream = plan_even(machine, tokens=8, hidden=HIDDEN, experts=EXPERTS, active=ACTIVE).stream
    assert (stream.stages, stream.num_held) == (2, 4)
    hold_emulated(decode_experts, machine, make_operands(8, routing), way="cuda:even")


@pytest.mark.parametrize("activation", ["bf16", "mxfp8"])
def test_tokens_held_in_turns_give_the_same_bits(activation, use_machine):
    run, results = decode_experts.implementations["cuda:even"].function, []
    for shared_bytes in (SMALL.shared_bytes, 12_500):
        use_machine(replace(SMALL, shared_bytes=shared_bytes))
        results.append(run(replace(make_operands(7, "half"), activation=activation)))
    assert torch.equal(*results)


def test_nan_reaches_every_value_of_its_token(hold_emulated):
    operands = make_operands(5, "the same")
    operands.r[-1, 3] = float("nan")
    hold_emulated(decode_experts, PAIRED, operands, way="cuda:even")
    assert decode_experts.reference(operands).isnan().all(1).tolist() == [False] * 4 + [True]


@pytest.mark.parametrize("tokens", [1, 2])
def test_prefetch_of_the_next_weights_stays_in_bounds(tokens, use_machine):
    use_machine(PAIRED)
    operands = make_operands(tokens)
    expected = decode_experts.reference(operands.clone())
    run = decode_experts.implementations[find_way(tokens)].function
    actual = run(replace(operands, ahead=torch.zeros(100_000, dtype=torch.uint8)))
    assert_close(actual=actual, expected=expected, tolerance=decode_experts.tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [PAIRED, SMALL, Machine(4, 101_376)], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8])
def test_every_number_of_tokens_and_routing(tokens, machine, hold_emulated):
    for routing in ROUTINGS:
        hold_emulated(decode_experts, machine, make_operands(tokens, routing), way=find_way(tokens))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "programs"),
    [shape for shape in itertools.product((64, 128, 320), (1, 2, 3, 4, 6, 7, 8)) if shape != (320, 1)],
)
def test_every_split_of_strips(hidden, programs, hold_emulated):
    machine = Machine(programs, 232_448)
    assert refuse_strips(machine, hidden) is None
    for tokens in (1, 3):
        hold_emulated(
            decode_experts, machine, make_operands(tokens, hidden=hidden, experts=8), way=find_way(tokens)
        )


def test_more_strips_than_a_cta_has_sums_for_are_refused():
    assert "up to 192 rows of fc2, not 320" in refuse_strips(Machine(1, 232_448), 320)


@pytest.mark.slow
@pytest.mark.parametrize("active", [1, 2, 3])
@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_fewer_active_experts(tokens, active, hold_emulated):
    for routing in ("any", "the same"):
        hold_emulated(decode_experts, PAIRED, make_operands(tokens, routing, active=active), way=find_way(tokens))


@pytest.mark.slow
@pytest.mark.parametrize("machine", [PAIRED, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("tokens", [1, 2, 3, 8])
def test_rounded_activations(tokens, machine, hold_emulated):
    operands = replace(make_operands(tokens), activation="mxfp8")
    hold_emulated(decode_experts, machine, operands, way=find_way(tokens))


@pytest.mark.slow
@pytest.mark.parametrize("experts", [4, 32, 128])
def test_other_numbers_of_experts(experts, hold_emulated):
    for tokens in (1, 3):
        hold_emulated(
            decode_experts, PAIRED, make_operands(tokens, experts=experts, hidden=64), way=find_way(tokens)
        )


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 8])
def test_warps_of_three_steps_as_in_the_real_size(tokens, hold_emulated):
    operands = make_operands(tokens, hidden=1344, experts=8)
    hold_emulated(decode_experts, Machine(44, 232_448), operands, way=find_way(tokens))


@pytest.mark.slow
def test_rounded_activations_at_real_widths_have_their_own_tolerance(use_machine, monkeypatch):
    monkeypatch.setattr(decode_shapes, "GPT_OSS", replace(decode_shapes.GPT_OSS, experts=ACTIVE))
    use_machine(machine_of((9, 0)))
    samples = list(decode_experts.make_samples(torch.device("cpu")))
    (sample,) = (sample for sample in samples if sample.label == "gpt-oss T=3 mxfp4-weight mxfp8")
    assert [sample.label for sample in samples if sample.tolerance is not None] == [
        "kindling T=5 mxfp4-weight mxfp8",
        sample.label,
    ]
    assert sample.tolerance is MXFP8_TOLERANCE
    assert check(decode_experts, decode_experts.implementations["cuda:even"], sample) is None
