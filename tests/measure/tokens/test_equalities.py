"""The equalities hold in float32 on a CPU, and a planted violation is detected."""

from dataclasses import replace

import pytest

from firesteel import LLM
from firesteel.config import resolve
from firesteel.engine.load import Loaded
from firesteel.measure.tokens.bench import opener
from firesteel.measure.tokens.equalities import MOST_STEP_TOKENS, NAMES, Equalities, Unmeasured, draw_mixed


def prepared(llm, *, count=5, prompt_tokens=36, max_tokens=10, **settings):
    loaded = Loaded(
        spec=llm.spec,
        device=llm.device,
        kernels=llm.kernels,
        max_context=llm.max_context,
        model=llm.model,
        engine=llm.engine,
        fused=None,
        report=llm.load_report,
    )
    requests = draw_mixed(count, prompt_tokens, max_tokens, llm.spec.vocab_size, seed=1)
    config = resolve({"device": "cpu", "page_size": 4, **settings}).config
    return Equalities(requests, opener(loaded, config, requests), seed=1)


def measured(llm, **shape):
    return {result.equality: result for result in prepared(llm, **shape).measure()}


def check_all_equal(results, count):
    assert tuple(results) == NAMES
    for result in results.values():
        assert (result.token_share, result.request_share, result.tokens_before) == (1.0, 1.0, None), result
        assert result.num_tokens == 10 * len(result.pairs)
    assert all(len(results[name].pairs) == count for name in NAMES if not name.startswith("preempted"))
    assert len(results["preempted = undisturbed"].pairs) > 0


def test_random_model_satisfies_every_equality(llm):
    results = measured(llm)
    check_all_equal(results, 5)
    assert results["batched = alone"].evidence == "5 at once" and "9 tokens" in results["chunked = whole"].evidence
    assert results["cached prefix = cold"].evidence == "91 % of prompts cached"


@pytest.mark.slow
def test_kindling_satisfies_every_equality():
    check_all_equal(measured(LLM(device="cpu", kv_cache_gib=0.1), count=3, prompt_tokens=20), 3)


@pytest.mark.gpu
def test_gpu_measures_every_equality_of_kindling():
    """Most tokens must be equal even for prompts of random tokens, for which bf16 is least certain."""
    results = measured(
        LLM(device="cuda", kv_cache_gib=0.5), count=8, prompt_tokens=100, max_tokens=32, page_size=16
    )
    assert tuple(results) == NAMES
    assert all(result.token_share > 0.5 and result.differences_a_token < 0.1 for result in results.values()), (
        results
    )


def test_logits_that_depend_on_the_batch_are_detected(open_llm, monkeypatch):
    llm = open_llm()
    head = llm.model.logits

    def disturbed(hidden, *rest):
        logits = head(hidden, *rest)
        return logits.roll(len(logits) - 1, dims=-1)

    monkeypatch.setattr(llm.model, "logits", disturbed)
    results = measured(llm)
    for name in ("batched = alone", "another order = in order", "same seed, batched = alone"):
        result = results[name]
        assert result.token_share < 0.9 and result.request_share < 1 and result.tokens_before < 10
    for name in ("again = once", "chunked = whole", "cached prefix = cold"):
        assert results[name].token_share == 1.0
    assert results["batched = alone"].largest_margin > 0
    assert results["same seed, batched = alone"].largest_margin is None, "margins of random draws mean nothing"


def test_keys_that_depend_on_the_piece_are_detected_in_chunked_and_cached_only(open_llm, monkeypatch):
    llm = open_llm()
    forward = llm.model.forward

    def disturbed(batch, cache, *rest, **named):
        hidden = forward(batch, cache, *rest, **named)
        is_piece = batch.positions[0] > 0 and len(batch.positions) > 1 and len(batch.kv_lens) == 1
        return hidden.flip(-1) if is_piece else hidden

    monkeypatch.setattr(llm.model, "forward", disturbed)
    results = measured(llm)
    assert results["chunked = whole"].token_share < 1 and results["cached prefix = cold"].token_share < 1
    assert results["again = once"].token_share == results["batched = alone"].token_share == 1.0


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (
            {"max_tokens": 2, "page_size": 64, "prompt_tokens": 80},
            {"preempted = undisturbed": "no request was preempted"},
        ),
        ({"page_size": 64}, {"preempted = undisturbed": "no request was preempted"}),
    ],
)
def test_condition_that_does_not_occur_leaves_only_its_equality_unmeasured(llm, shape, expected):
    check_unmeasured(measured(llm, **shape), expected)


def check_unmeasured(results, expected):
    assert tuple(results) == NAMES
    missing = {name: result.why_not for name, result in results.items() if isinstance(result, Unmeasured)}
    assert missing.keys() == expected.keys()
    assert all(missing[name].startswith(why) and ": raise --" in missing[name] for name, why in expected.items())


@pytest.mark.slow
def test_batched_is_unmeasured_unless_two_requests_share_a_step(llm):
    equalities = prepared(llm)
    equalities.all = replace(equalities.all, max_num_seqs=1)
    names = ("batched = alone", "preempted = undisturbed", "another order = in order", "same seed, batched = alone")
    results = {result.equality: result for result in equalities.measure()}
    check_unmeasured(results, dict.fromkeys(names, "no two requests were computed at once"))


@pytest.mark.slow
def test_another_order_is_unmeasured_if_order_and_arrival_stay(llm, monkeypatch):
    equalities = prepared(llm)
    monkeypatch.setattr(equalities.rng, "sample", lambda requests, count: list(requests))
    monkeypatch.setattr(equalities.rng, "randint", lambda first, last: 0)
    results = {result.equality: result for result in equalities.measure()}
    check_unmeasured(results, {"another order = in order": "requests came in the same order, all at once"})
    monkeypatch.setattr(equalities.rng, "sample", lambda requests, count: list(requests)[::-1])
    assert equalities._reordered().evidence == "over 1 steps"


def test_drawn_prompts_have_half_to_full_length_and_repeat_with_the_seed():
    first, again = (draw_mixed(20, 30, 4, 272, seed=5) for _ in range(2))
    assert [request.token_ids for request in first] == [request.token_ids for request in again]
    lengths = {request.num_prompt for request in first}
    assert len(lengths) > 5 and min(lengths) >= 15 and max(lengths) <= 30
    assert len({tuple(request.token_ids) for request in first}) == 20


def test_steps_of_long_prompts_stay_within_what_the_experts_count():
    requests = draw_mixed(32, 8000, 64, 201088, seed=0)
    assert sum(request.num_prompt for request in requests) > 4 * MOST_STEP_TOKENS
    equalities = Equalities(requests, lambda setup: None, seed=0)
    assert equalities.all.max_num_batched_tokens == MOST_STEP_TOKENS
    assert equalities.single.max_num_batched_tokens == max(request.num_prompt for request in requests)
    pairs, widest = 4 * MOST_STEP_TOKENS, 2 * 2880
    assert pairs * widest < 2**31, "the experts of gpt-oss must take a step of this size"
    few = Equalities(requests[:2], lambda setup: None, seed=0)
    assert few.all.max_num_batched_tokens == sum(request.num_prompt for request in requests[:2])
