"""decode_experts' kernel on emulated GPUs: shared strips, tokens that want the same experts, late inputs."""

import itertools
from dataclasses import dataclass, replace

import pytest
import torch

from firesteel.kernels.decode.experts import MXFP8_TOLERANCE, DecodeExpertsOperands, decode_experts, plan
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
SMALL = Machine(5, 26_000)  # an expert multiplies 4 tokens at a time, whose rows do not fit at once


@dataclass(frozen=True, slots=True)
class Tight(Machine):
    """A large machine on which the rows of eight tokens still do not fit at once, as with real sizes."""

    @property
    def is_large(self):
        return True


TIGHT = Tight(10, 26_000)
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


@pytest.mark.parametrize("way", ["cuda", "cuda:passed"])
def test_paired_ctas_wait_for_all_lanes_if_all_lanes_arrive(way, hold_emulated):
    with with_all_arriving():
        hold_emulated(decode_experts, PAIRED, make_operands(1), way=way)


def test_emulated_machines_split_small_sizes_as_real_gpus_split_real_sizes():
    def find(machine, tokens, hidden=HIDDEN, experts=EXPERTS):
        defines = plan(machine, tokens=tokens, hidden=hidden, experts=experts, active=ACTIVE).kernel.source.defines
        return defines["IS_PAIRED"], defines["HOLDS_ALL"], defines["MOST_WIDTH"]

    h200, gb10 = machine_of((9, 0)), machine_of((12, 1))
    assert find(PAIRED, 1) == find(h200, 1, 2880, 128) == (True, True, 8)
    assert find(TIGHT, 8) == find(h200, 8, 2880, 128) == (True, False, 8)
    assert find(SMALL, 8) == find(gb10, 8, 2880, 128) == (False, False, 4)


def test_one_token_with_strips_shared_by_pairs_of_ctas(hold_emulated):
    for routing in ("any", "equal"):
        hold_emulated(decode_experts, PAIRED, make_operands(1, routing))


@pytest.mark.parametrize(
    ("tokens", "routing"), [(5, "any"), (8, "the same"), (8, "all others"), (8, "half")], ids=str
)
def test_tokens_with_same_and_different_experts(tokens, routing, hold_emulated):
    hold_emulated(decode_experts, TIGHT, make_operands(tokens, routing))


def test_expert_with_more_tokens_than_fit_at_once_is_read_twice(hold_emulated):
    hold_emulated(decode_experts, SMALL, make_operands(8, "the same"))


@pytest.mark.parametrize(("machine", "tokens"), [(PAIRED, 1), (TIGHT, 8)], ids=["1", "8"])
def test_only_the_norm_is_read_before_the_inputs_are_ready(machine, tokens, hold_early):
    hold_early(decode_experts, machine, ("r", "logits"), make_operands(tokens))


@pytest.mark.parametrize(("machine", "tokens"), [(PAIRED, 1), (TIGHT, 5)], ids=["1", "5"])
def test_nan_reaches_every_value_of_its_token(machine, tokens, hold_emulated):
    operands = make_operands(tokens, "the same")
    operands.r[-1, 3] = float("nan")
    hold_emulated(decode_experts, machine, operands)
    assert decode_experts.reference(operands).isnan().all(1).tolist() == [False] * (tokens - 1) + [True]


@pytest.mark.parametrize("way", ["cuda", "cuda:passed"])
def test_prefetch_of_the_next_weights_stays_in_bounds(way, use_machine, before_a_wall):
    use_machine(PAIRED)
    operands = make_operands(1)
    expected = decode_experts.reference(operands.clone())
    actual = decode_experts.implementations[way].function(replace(operands, ahead=before_a_wall(100_000)))
    assert_close(actual=actual, expected=expected, tolerance=decode_experts.tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [PAIRED, TIGHT, SMALL, Machine(4, 101_376)], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8])
def test_every_number_of_tokens_and_routing(tokens, machine, hold_emulated):
    for routing in ROUTINGS:
        hold_emulated(decode_experts, machine, make_operands(tokens, routing))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "programs"),
    [shape for shape in itertools.product((64, 128, 320), (1, 2, 3, 4, 6, 7, 8)) if shape != (320, 1)],
)
def test_every_split_of_strips(hidden, programs, hold_emulated):
    machine = Machine(programs, 232_448)
    assert refuse_strips(machine, hidden) is None
    for tokens in (1, 3):
        hold_emulated(decode_experts, machine, make_operands(tokens, hidden=hidden, experts=8))


def test_more_strips_than_a_cta_has_sums_for_are_refused():
    assert "up to 192 rows of fc2, not 320" in refuse_strips(Machine(1, 232_448), 320)


@pytest.mark.slow
@pytest.mark.parametrize("active", [1, 2, 3])
@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_fewer_active_experts(tokens, active, hold_emulated):
    for routing in ("any", "the same"):
        hold_emulated(decode_experts, PAIRED, make_operands(tokens, routing, active=active))


@pytest.mark.slow
@pytest.mark.parametrize("machine", [PAIRED, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("tokens", [1, 2, 3, 8])
def test_rounded_activations(tokens, machine, hold_emulated):
    hold_emulated(decode_experts, machine, replace(make_operands(tokens), activation="mxfp8"))


@pytest.mark.slow
@pytest.mark.parametrize("experts", [4, 32, 128])
def test_other_numbers_of_experts(experts, hold_emulated):
    for tokens in (1, 3):
        hold_emulated(decode_experts, PAIRED, make_operands(tokens, experts=experts, hidden=64))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 8])
def test_warps_of_three_steps_as_in_the_real_size(tokens, hold_emulated):
    hold_emulated(decode_experts, Machine(44, 232_448), make_operands(tokens, hidden=1344, experts=8))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["cuda", "cuda:even"])
def test_rounded_activations_at_real_widths_have_their_own_tolerance(way, use_machine, monkeypatch):
    monkeypatch.setattr(decode_shapes, "GPT_OSS", replace(decode_shapes.GPT_OSS, experts=ACTIVE))
    use_machine(machine_of((9, 0)))
    samples = list(decode_experts.make_samples(torch.device("cpu")))
    (sample,) = (sample for sample in samples if sample.label == "gpt-oss T=3 mxfp4-weight mxfp8")
    assert [sample.label for sample in samples if sample.tolerance is not None] == [
        "kindling T=5 mxfp4-weight mxfp8",
        sample.label,
    ]
    assert sample.tolerance is MXFP8_TOLERANCE
    assert check(decode_experts, decode_experts.implementations[way], sample) is None
