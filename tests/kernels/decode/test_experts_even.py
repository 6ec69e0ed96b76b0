"""decode_experts=cuda:even, which divides both matmuls by cost: emulated, and on a GPU at real shapes."""

import pytest
import torch

from firesteel.kernels.decode.experts import DecodeExpertsOperands, decode_experts
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.operands.weights import random_experts
from firesteel.kernels.proof.verify import check
from firesteel.kernels.stream.build import with_delays
from firesteel.kernels.stream.plan import Machine
from firesteel.kernels.stream.shapes import Draw

EVEN = decode_experts.implementations["cuda:even"]
UNEVEN, LARGE, SMALL = (
    Machine(5, 232_448),
    Machine(4, 232_448),
    Machine(3, 101_376),
)  # shared memory of an H200 and of a GB10


def draw(tokens, experts, hidden, *, active=4, alike=False, activation="bf16", device="cpu"):
    """Draws a sample; with `alike` all tokens choose the same experts."""
    random = Draw(torch.device(device))
    weights, logits = random_experts(experts, hidden, hidden, random.generator), random.logits(tokens, experts)
    if alike:
        logits[:] = logits[0]
    operands = DecodeExpertsOperands(
        r=random.normal(tokens, hidden),
        norm=random.normal(hidden),
        eps=1e-5,
        logits=logits,
        experts=weights,
        limit=7.0,
        active=active,
        activation=activation,
    )
    return Sample(f"T={tokens} E={experts} H={hidden} {active=} {alike=} {activation}", (operands,))


@pytest.mark.parametrize(
    "sample", [draw(5, 8, 128), draw(8, 8, 128), draw(6, 8, 128, alike=True)], ids=lambda sample: sample.label
)
def test_each_token_gets_its_experts_however_many_tokens_share_one(hold_emulated, sample):
    hold_emulated(decode_experts, LARGE, *sample.args, way="cuda:even")


@pytest.mark.slow
@pytest.mark.parametrize(
    "sample",
    [draw(2, 8, 128, active=1), draw(3, 40, 192), draw(8, 8, 128, activation="mxfp8"), draw(7, 4, 128, alike=True)],
    ids=lambda sample: sample.label,
)
@pytest.mark.parametrize("machine", [LARGE, SMALL], ids=["large", "small"])
def test_other_sizes_and_small_machines(hold_emulated, machine, sample):
    hold_emulated(decode_experts, machine, *sample.args, way="cuda:even")


def test_nothing_but_the_norm_is_read_before_the_wait(hold_early):
    hold_early(decode_experts, LARGE, ("r", "logits"), *draw(5, 8, 128).args, way="cuda:even")


@pytest.mark.usefixtures("spoilt_memory")
@pytest.mark.parametrize("machine", [LARGE, UNEVEN], ids=["even", "uneven"])
def test_ctas_wait_for_what_others_write(hold_emulated, machine):
    for _ in range(4):
        hold_emulated(decode_experts, machine, *draw(7, 8, 128).args, way="cuda:even")


def test_one_token_is_refused():
    assert EVEN.accepts(*draw(1, 8, 128).args) == "is for two tokens or more"
    assert EVEN.accepts(*draw(2, 8, 128).args) is None


@pytest.mark.gpu
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 7, 8])
def test_real_shapes_on_a_gpu(tokens, alike):
    assert check(decode_experts, EVEN, draw(tokens, 128, 2880, alike=alike, device="cuda")) is None


@pytest.mark.gpu
def test_same_bits_with_delays_on_a_gpu():
    sample = draw(8, 128, 2880, device="cuda")
    first = EVEN.function(*sample.clone())
    for _ in range(20):
        with with_delays():
            assert torch.equal(first, EVEN.function(*sample.clone()))
