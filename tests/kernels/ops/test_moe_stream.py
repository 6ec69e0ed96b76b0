"""moe_matmul=cuda:stream: emulated on a CPU, and run on a GPU at real shapes."""

import importlib
from dataclasses import replace

import pytest
import torch

from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import assert_close
from firesteel.kernels.operands.weights import random_experts
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.moe_operands import MoeMatmulOperands
from firesteel.kernels.proof.verify import check
from firesteel.kernels.stream.plan import Machine

MODULE = importlib.import_module("firesteel.kernels.ops.moe_stream")
UNEVEN, LARGE, SMALL = (
    Machine(5, 232_448),
    Machine(4, 232_448),
    Machine(3, 101_376),
)  # shared memory of an H200 and of a GB10


def draw(tokens, experts, hidden, inter, *, active=4, used=None, seed=1, device="cpu"):
    """Draws a sample whose tokens choose among the first `used` experts."""
    generator = torch.Generator(device).manual_seed(seed)
    weights = random_experts(experts, hidden, inter, generator)
    x = torch.randn(tokens, hidden, device=device, generator=generator).bfloat16()
    chosen, ids = torch.rand(tokens, used or experts, device=device, generator=generator).topk(active)
    operands = MoeMatmulOperands(x=x, ids=ids, weights=chosen.softmax(-1), experts=weights, limit=1.0)
    return Sample(f"T={tokens} E={experts} used={used}", (operands,))


def run(operands):
    return MODULE.run(operands.x, operands.ids, operands.weights, operands.experts, operands.limit)


def label(sample):
    return sample.label if isinstance(sample, Sample) else f"{sample.num_sms} SMs"


@pytest.mark.parametrize(
    "sample",
    [
        draw(1, 8, 128, 128),
        draw(5, 8, 128, 128),
        draw(16, 8, 128, 128),
        draw(16, 8, 128, 128, used=4),
        draw(11, 8, 128, 128, used=5),
    ],
    ids=label,
)
def test_each_token_gets_its_experts_however_many_tokens_share_one(hold_emulated, sample):
    hold_emulated(moe_matmul, LARGE, *sample.args, way="cuda:stream")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "sample"),
    [
        (LARGE, draw(33, 40, 192, 128)),
        (LARGE, draw(64, 5, 128, 192)),
        (LARGE, draw(7, 3, 64, 64, active=1)),
        (SMALL, draw(17, 8, 128, 192)),
        (SMALL, draw(64, 4, 128, 128)),
    ],
    ids=label,
)
def test_other_sizes_and_small_machines(hold_emulated, machine, sample):
    hold_emulated(moe_matmul, machine, *sample.args, way="cuda:stream")


@pytest.mark.parametrize("tokens", [65, pytest.param(192, marks=pytest.mark.slow)])
def test_hundreds_of_tokens_share_experts(hold_emulated, tokens):
    hold_emulated(moe_matmul, LARGE, *draw(tokens, 8, 64, 64).args, way="cuda:stream")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "sample"),
    [
        (LARGE, draw(100, 40, 128, 64)),
        (UNEVEN, draw(129, 16, 64, 128)),
        (LARGE, draw(191, 130, 64, 64)),
        (LARGE, draw(192, 4, 64, 64)),
        (LARGE, draw(150, 3, 64, 64, active=1)),
        (SMALL, draw(191, 40, 64, 64)),
    ],
    ids=label,
)
def test_hundreds_of_tokens_of_other_sizes(hold_emulated, machine, sample):
    hold_emulated(moe_matmul, machine, *sample.args, way="cuda:stream")


@pytest.mark.usefixtures("spoilt_memory")
@pytest.mark.parametrize(("tokens", "padding"), [(5, 3), (70, 58), (3, 0)])
def test_pairs_without_an_expert_add_nothing(use_machine, tokens, padding):
    """Padding rows of a batch have id -1, and single ranks may too. Their results would be NaN here."""
    (operands,) = draw(tokens + padding, 8, 128, 128).args
    ids = operands.ids
    ids[tokens:] = -1
    ids[0, 1], ids[1, :], ids[2, 3] = -1, -1, -(1 << 40)
    use_machine(LARGE)
    y = run(operands)
    assert y[tokens:].eq(0).all() and y[1].eq(0).all()
    expected = moe_matmul.reference(operands)
    assert_close(actual=y, expected=expected, tolerance=moe_matmul.tolerance)
    kept = operands.weights.masked_fill(ids < 0, 0.0)
    same = moe_matmul.reference(replace(operands, ids=ids.clamp(min=0), weights=kept))
    assert_close(actual=expected, expected=same, tolerance=moe_matmul.tolerance)


def test_all_pairs_without_an_expert_give_zeros(use_machine):
    (operands,) = draw(3, 8, 64, 64).args
    operands.ids.fill_(-1)
    use_machine(LARGE)
    assert run(operands).eq(0).all()


def test_ctas_without_strips_do_nothing(hold_emulated):
    """Five CTAs share the 4 strips of one expert in the second matmul."""
    hold_emulated(moe_matmul, UNEVEN, *draw(1, 3, 64, 64, active=1).args, way="cuda:stream")


@pytest.mark.usefixtures("spoilt_memory")
@pytest.mark.parametrize("machine", [LARGE, UNEVEN], ids=["even", "uneven"])
def test_ctas_wait_for_what_others_write(hold_emulated, machine):
    for _ in range(4):
        hold_emulated(moe_matmul, machine, *draw(7, 8, 128, 128).args, way="cuda:stream")


def test_nan_stays_in_its_token(use_machine):
    (operands,) = draw(9, 8, 128, 128).args
    operands.x[3, 17] = torch.nan
    use_machine(LARGE)
    y = run(operands)
    assert y.isnan().any(dim=1).tolist() == [token == 3 for token in range(9)]


def test_refusals_name_what_is_wrong():
    refuse = moe_matmul.implementations["cuda:stream"].accepts
    (operands,) = draw(3, 8, 128, 128).args
    assert refuse(operands) is None
    assert "bf16 activations, not mxfp8" in refuse(replace(operands, activation="mxfp8"))
    assert "16x64 is pinned" in refuse(replace(operands, tile="16x64"))
    assert refuse(*draw(192, 8, 128, 128).args) is None
    assert "1 to 192 tokens" in refuse(*draw(193, 8, 128, 128).args)
    assert "768 pairs, not 97 and 776" in refuse(*draw(97, 8, 128, 128, active=8).args)
    assert "contiguous" in refuse(replace(operands, ids=operands.ids.T.contiguous().T))
    assert "by 16 rows" in refuse(*draw(1, 4, 136, 128).args)
    assert "multiple of 64" in refuse(*draw(1, 4, 96, 128).args)
    assert "fp32" in refuse(replace(operands, weights=operands.weights.double()))
    assert "int64" in refuse(replace(operands, ids=operands.ids.int()))


def test_kernels_are_compiled_for_the_pairs_that_fit_the_machine():
    sizes = {"is_up": True, "columns": 64, "rows": 64, "experts": 8, "active": 4}
    results = [
        MODULE.plan(LARGE, **sizes, pairs=pairs).source.defines["MAX_PAIRS"] for pairs in (1, 64, 65, 256, 257, 768)
    ]
    assert results == [64, 64, 128, 256, 512, 768]
    for pairs in MODULE.PAIRS:
        small = MODULE.plan(SMALL, is_up=True, columns=2880, rows=5760, experts=128, active=4, pairs=pairs)
        assert small.shared_bytes <= SMALL.shared_bytes and small.source.defines["MAX_TOKENS"] == 4


def test_a_machine_with_too_little_memory_is_refused_before_the_launch():
    (operands,) = draw(3, 8, 128, 128).args
    assert MODULE._refuse_memory(SMALL, operands.ids, operands.experts) is None
    refused = MODULE._refuse_memory(Machine(3, 4096), operands.ids, operands.experts)
    assert "bytes of shared memory for 12 pairs" in refused


@pytest.mark.parametrize(
    ("machine", "capability", "tokens", "is_taken"),
    [
        (LARGE, (10, 0), 192, True),
        (LARGE, (9, 0), 128, True),
        (LARGE, (9, 0), 129, False),
        (SMALL, (12, 1), 64, True),
        (SMALL, (12, 1), 65, False),
    ],
)
def test_some_machines_take_fewer_tokens(monkeypatch, machine, capability, tokens, is_taken):
    class OnGpu(torch.Tensor):
        is_cuda = True

    monkeypatch.setattr(MODULE, "find_machine", lambda device: machine)
    monkeypatch.setattr(MODULE, "find_capability", lambda device: capability)
    (operands,) = draw(tokens, 8, 128, 128).args
    x = operands.x.as_subclass(OnGpu)
    why = MODULE.refuse(x, operands.ids, operands.weights, operands.experts, "bf16")
    assert why is None if is_taken else f"1 to {tokens - 1} tokens" in why


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 9, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129, 191, 192])
def test_real_shapes_on_a_gpu(tokens):
    sample = draw(tokens, 128, 2880, 2880, seed=tokens, device="cuda")
    assert check(moe_matmul, moe_matmul.implementations["cuda:stream"], sample) is None


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [64, 192])
@pytest.mark.parametrize("used", [4, 5, 9])
def test_few_experts_for_all_tokens_on_a_gpu(used, tokens):
    sample = draw(tokens, 128, 2880, 2880, used=used, device="cuda")
    assert check(moe_matmul, moe_matmul.implementations["cuda:stream"], sample) is None


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [32, 150])
def test_same_inputs_give_the_same_bits_in_a_graph_too(tokens):
    (operands,) = draw(tokens, 128, 2880, 2880, device="cuda").args
    first = run(operands)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = run(operands)
    for _ in range(20):
        again.fill_(torch.nan)
        graph.replay()
        assert torch.equal(first, again)
