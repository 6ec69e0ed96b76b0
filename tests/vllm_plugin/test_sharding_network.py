"""Tensor-parallel ranks, one after the other in one process, against the whole network; float32 on a CPU.

The cut changes nothing but the order of sums, so results differ by float32 rounding: about 1e-6 of a value per sum,
and two sums of a few thousand products per layer. A wrong cut, a bias added twice or a residual added by two ranks
changes a tenth of a value or more.
"""

from dataclasses import replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.engine.step.batch import build_batch
from firesteel.hub import BUILT_IN
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.rope import RopeSpec
from firesteel.measure.decode.steps import fill_pages, first_batch, lay_out, watch
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import GROUPS, DecodeError, DecodeOps
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import PRESETS, ModelSpec, read_spec
from firesteel.model.synthetic import synthetic_weights
from firesteel.model.weights import load_weights
from firesteel.types import Plan, Request, SamplingParams, Span
from firesteel.vllm_plugin.sharding import Shard, load_shard, synthetic_shard
from tests.vllm_plugin.ranks import Turns

CPU = find_device("cpu")
KINDLING = read_spec(BUILT_IN)
ALL_DENSE = ("qkv", "o", "lm_head")
SMALL = ModelSpec(
    num_layers=4,
    hidden_size=96,
    intermediate_size=320,
    num_heads=8,
    num_kv_heads=4,
    head_dim=32,
    num_experts=6,
    num_active=4,
    vocab_size=299,
    windows=(8, None) * 2,
    rope=RopeSpec(theta=150000.0, factor=32.0, original_context=64),
    max_context=512,
)
# Widths of gpt-oss-120b and 20b, which differ in the numbers of layers and experts only. All experts are active, so
# that no near tie of the router can choose others.
WIDE = replace(
    PRESETS["gpt-oss-120b"], num_layers=2, windows=(128, None), num_experts=2, num_active=2, vocab_size=1000
)
LARGEST_ERROR = 1e-5
PAGE_SIZE = 16
CONTEXTS = [21, 0, 40]


def model_of(spec, weights, ranks=None):
    return GptOss(spec, weights, Kernels(CPU, {}, Ledger()), CPU, max_context=512, ranks=ranks)


def random_rank(spec, turns, rank, seed=3):
    shard = Shard(whole=spec, rank=rank, size=turns.size)
    return model_of(shard.spec, synthetic_shard(shard, CPU, seed=seed), turns.ranks(rank))


def prompt_batch(token_ids, num_logits):
    num_pages = -(-len(token_ids) // PAGE_SIZE)
    span = Span(
        request=Request(request_id="a", token_ids=token_ids, params=SamplingParams()),
        token_ids=token_ids,
        start=0,
        end=len(token_ids),
        full_pages=list(range(num_pages)),
        window_pages=list(range(num_pages, 2 * num_pages)),
        num_logits=num_logits,
    )
    return build_batch(Plan(spans=[span]), PAGE_SIZE, torch.device("cpu"))


def compute_prompt(model, token_ids, num_logits):
    """Returns (hidden [L, H], logits [L, the model's rows of lm_head])."""
    cache = new_cache(model.spec, 2 * -(-len(token_ids) // PAGE_SIZE), PAGE_SIZE, CPU, torch.float32)
    with torch.inference_mode():
        hidden = model.forward(prompt_batch(token_ids, num_logits), cache)
        return hidden, model.logits(hidden)


def error(actual, expected):
    return float((actual - expected).norm() / expected.norm())


def check_prompt(whole, turns, open_rank, token_ids, num_logits):
    expected, expected_logits = compute_prompt(whole, token_ids, num_logits)
    models = [open_rank(rank) for rank in range(turns.size)]
    results = turns.run(lambda rank: compute_prompt(models[rank], token_ids, num_logits))
    assert turns.num_sums == 2 * whole.spec.num_layers
    for hidden, _ in results:
        assert torch.equal(hidden, results[0][0]), "ranks must not drift apart"
        assert error(hidden, expected) < LARGEST_ERROR
    gathered = torch.cat([logits for _, logits in results], dim=-1)[:, : whole.spec.vocab_size]
    assert error(gathered, expected_logits) < LARGEST_ERROR
    assert torch.equal(gathered.argmax(-1), expected_logits.argmax(-1))


@pytest.mark.parametrize("in_place", [False, True], ids=["sums in new tensors", "sums in place"])
@pytest.mark.parametrize("num_logits", [1, 200])
def test_prompt_of_the_shipped_model_on_two_ranks(num_logits, in_place):
    """The prompt is longer than the window."""
    generator = torch.Generator().manual_seed(5)
    token_ids = torch.randint(KINDLING.vocab_size, (200,), generator=generator).tolist()
    options = {"workers": 2, "reserve_gib": 0.0}
    whole = model_of(KINDLING, load_weights(BUILT_IN, KINDLING, CPU, **options)[0])
    turns = Turns(2, in_place)

    def open_rank(rank):
        shard = Shard(whole=KINDLING, rank=rank, size=2)
        weights, _ = load_shard(BUILT_IN, KINDLING, shard, CPU, **options)
        return model_of(shard.spec, weights, turns.ranks(rank))

    check_prompt(whole, turns, open_rank, token_ids, num_logits)


@pytest.mark.parametrize("layers", [(), ALL_DENSE], ids=str)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_prompt_of_a_random_network(size, layers):
    spec = replace(SMALL, mxfp4_layers=layers)
    whole, turns = model_of(spec, synthetic_weights(spec, CPU, seed=3)), Turns(size)
    check_prompt(whole, turns, lambda rank: random_rank(spec, turns, rank), list(range(7, 47)), 3)


@pytest.mark.parametrize("size", [2, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_prompt_at_the_published_widths(size):
    whole, turns = model_of(WIDE, synthetic_weights(WIDE, CPU, seed=3)), Turns(size)
    check_prompt(whole, turns, lambda rank: random_rank(WIDE, turns, rank), [3, 1, 4, 1, 5], 5)


def open_step(model, pages, filled, rank=0):
    """Returns a step at CONTEXTS; the heads' keys and values are those of `filled`, the cache of all heads."""
    cache = new_cache(model.spec, pages.count, PAGE_SIZE, CPU, torch.float32)
    heads = slice(rank * model.spec.num_kv_heads, (rank + 1) * model.spec.num_kv_heads)
    for ours, theirs in zip((*cache.keys, *cache.values), (*filled.keys, *filled.values), strict=True):
        ours.copy_(theirs[:, heads])
    ops = DecodeOps.choose(CPU, model.kernels.ledger)
    step = DecodeStep(model, cache, ops, num_requests=len(CONTEXTS), num_pages=pages.width)
    step.load(first_batch([5, 6, 7], CONTEXTS, pages, cache))
    return step


def filled_cache(spec, room):
    """Returns (pages, a cache of the whole network with random content)."""
    window = max(window for window in spec.windows if window is not None)
    pages = lay_out(CONTEXTS, room=room, page_size=PAGE_SIZE, window=window, seed=2)
    cache = new_cache(spec, pages.count, PAGE_SIZE, CPU, torch.float32)
    fill_pages(cache, seed=2)
    return pages, cache


def check_steps(spec, weights, open_weights, turns, num_steps):
    """Compares decoding steps; each rank has the whole lm_head, so that it finds the next token by itself."""
    pages, filled = filled_cache(spec, num_steps)
    step = open_step(model_of(spec, weights), pages, filled)
    with torch.inference_mode():
        expected = [(step.run().clone(), step.inputs.token_ids.tolist()) for _ in range(num_steps)]
    steps = []
    for rank in range(turns.size):
        shard = Shard(whole=spec, rank=rank, size=turns.size)
        model = model_of(shard.spec, replace(open_weights(shard), lm_head=weights.lm_head), turns.ranks(rank))
        steps.append(open_step(model, pages, filled, rank))

    def work(rank):
        return [(steps[rank].run().clone(), steps[rank].inputs.token_ids.tolist()) for _ in range(num_steps)]

    for results in turns.run(work):
        for (logits, token_ids), (expected_logits, expected_ids) in zip(results, expected, strict=True):
            assert error(logits, expected_logits) < LARGEST_ERROR
            assert token_ids == expected_ids
    assert turns.num_sums == 2 * spec.num_layers * num_steps
    assert len({tuple(token_ids) for _, token_ids in expected}) > num_steps // 2


@pytest.mark.parametrize("in_place", [False, True], ids=["sums in new tensors", "sums in place"])
def test_decoding_steps_of_the_shipped_model_on_two_ranks(in_place):
    options = {"workers": 2, "reserve_gib": 0.0}
    weights, _ = load_weights(BUILT_IN, KINDLING, CPU, **options)
    check_steps(
        KINDLING,
        weights,
        lambda shard: load_shard(BUILT_IN, KINDLING, shard, CPU, **options)[0],
        Turns(2, in_place),
        6,
    )


@pytest.mark.parametrize("layers", [(), ALL_DENSE], ids=str)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_decoding_steps_of_a_random_network(size, layers):
    spec = replace(SMALL, mxfp4_layers=layers)
    weights = synthetic_weights(spec, CPU, seed=3)
    check_steps(spec, weights, lambda shard: synthetic_shard(shard, CPU, seed=3), Turns(size), 8)


@pytest.mark.parametrize("size", [2, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_decoding_step_at_the_published_widths(size):
    weights = synthetic_weights(WIDE, CPU, seed=3)
    check_steps(WIDE, weights, lambda shard: synthetic_shard(shard, CPU, seed=3), Turns(size), 1)


def test_experts_whose_rows_have_one_length_are_split_for_ranks():
    """The fused experts read and add to the same residual, which ranks other than the first must not."""
    spec = replace(SMALL, hidden_size=64, intermediate_size=128)
    assert Shard(whole=spec, rank=1, size=2).spec.intermediate_size == spec.hidden_size
    weights = synthetic_weights(spec, CPU, seed=3)
    check_steps(spec, weights, lambda shard: synthetic_shard(shard, CPU, seed=3), Turns(2), 3)


def test_dependent_launch_ends_at_every_sum_over_ranks():
    pages, filled = filled_cache(SMALL, 1)
    turns = Turns(1)
    model = model_of(SMALL, synthetic_weights(SMALL, CPU, seed=3), turns.ranks(0))
    step = open_step(model, pages, filled)
    calls = turns.run(lambda rank: watch(step))[0]
    dependent = {group: {call.operands.dependent for call in calls[group]} for group in GROUPS if calls[group]}
    after_sums = ("qkv", "router", "lm_head")
    others = ("attention", "o", "fc1", "fc2", "sample")
    assert dependent == {group: {group not in after_sums} for group in (*after_sums, *others)}
    assert step.dependent


def test_rank_with_some_rows_of_lm_head_does_not_choose_a_token():
    pages, filled = filled_cache(SMALL, 1)
    model = random_rank(SMALL, Turns(2), 1)
    with pytest.raises(DecodeError, match=r"holds 160 of 299 rows of lm_head.* call run_layers"):
        open_step(model, pages, filled, 1).run()


def test_sum_of_layers_alone_is_what_the_final_norm_reads():
    """run_layers and the ranks' parts of lm_head give the logits of a whole step."""
    pages, filled = filled_cache(SMALL, 1)
    whole = open_step(model_of(SMALL, synthetic_weights(SMALL, CPU, seed=3)), pages, filled)
    expected = whole.run()
    turns = Turns(4)
    models = [random_rank(SMALL, turns, rank) for rank in range(4)]
    steps = [open_step(model, pages, filled, rank) for rank, model in enumerate(models)]

    def work(rank):
        normed, _ = models[rank].norm(steps[rank].run_layers(), None, models[rank].weights.norm)
        return models[rank].logits(normed.plain)

    gathered = torch.cat(turns.run(work), dim=-1)[:, : SMALL.vocab_size]
    assert error(gathered, expected) < LARGEST_ERROR


def test_a_failing_rank_fails_the_run():
    turns = Turns(3)

    def work(rank):
        if rank == 1:
            raise ValueError("rank 1 is broken")
        return turns.ranks(rank).add(torch.ones(1))

    with pytest.raises(ValueError, match="rank 1 is broken"):
        turns.run(work)
