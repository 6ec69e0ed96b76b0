"""The equalities hold in float32 on a CPU, and one that is broken on purpose is seen to be."""

from dataclasses import replace

import pytest

from firesteel import LLM
from firesteel.cli.bench.agreement import opener
from firesteel.config import resolve
from firesteel.engine.load import Loaded
from firesteel.measure.tokens.equalities import NAMES, Equalities, Unmeasured, draw_mixed


def prepared(llm, *, count=5, prompt_tokens=36, max_tokens=10, **knobs):
    loaded = Loaded(
        spec=llm.spec, device=llm.device, kernels=llm.kernels, max_context=llm.max_context, model=llm.model,
        engine=llm.engine, fused=None, report=llm.load_report,
    )  # fmt: skip
    requests = draw_mixed(count, prompt_tokens, max_tokens, llm.spec.vocab_size, seed=1)
    config = resolve({"device": "cpu", "page_size": 4, **knobs}).config
    return Equalities(requests, opener(loaded, config, requests), seed=1)


def measured(llm, **shape):
    return {one.equality: one for one in prepared(llm, **shape).measure()}


def check_all_equal(found, count):
    assert tuple(found) == NAMES
    for one in found.values():
        assert (one.token_share, one.request_share, one.tokens_before) == (1.0, 1.0, None), one
        assert one.num_tokens == 10 * len(one.pairs)
    assert all(len(found[name].pairs) == count for name in NAMES if not name.startswith("preempted"))
    assert len(found["preempted = undisturbed"].pairs) > 0


def test_random_model_agrees_with_itself_in_every_way(llm):
    found = measured(llm)
    check_all_equal(found, 5)
    assert found["batched = alone"].evidence == "5 at once" and "9 tokens" in found["chunked = whole"].evidence
    assert found["cached prefix = cold"].evidence == "90 % of prompts cached"


@pytest.mark.slow
def test_kindling_agrees_with_itself_in_every_way():
    check_all_equal(measured(LLM(device="cpu", kv_cache_gib=0.1), count=3, prompt_tokens=20), 3)


@pytest.mark.gpu
def test_gpu_measures_every_equality_of_kindling():
    """Prompts are random tokens, of which bf16 is least sure: most tokens must be the same even so."""
    found = measured(LLM(device="cuda", kv_cache_gib=0.5), count=8, prompt_tokens=100, max_tokens=32, page_size=16)
    assert tuple(found) == NAMES
    assert all(one.token_share > 0.5 and one.differences_a_token < 0.1 for one in found.values()), found


def test_logits_that_depend_on_the_batch_are_seen(open_llm, monkeypatch):
    llm = open_llm()
    head = llm.model.logits

    def disturbed(hidden, *rest):
        logits = head(hidden, *rest)
        return logits.roll(len(logits) - 1, dims=-1)

    monkeypatch.setattr(llm.model, "logits", disturbed)
    found = measured(llm)
    for name in ("batched = alone", "another order = in order", "same seed, batched = alone"):
        one = found[name]
        assert one.token_share < 0.9 and one.request_share < 1 and one.tokens_before < 10
    for name in ("again = once", "chunked = whole", "cached prefix = cold"):
        assert found[name].token_share == 1.0
    assert found["batched = alone"].largest_margin > 0
    assert found["same seed, batched = alone"].largest_margin is None, "of a draw it would say nothing"


def test_keys_that_depend_on_the_piece_are_seen_in_chunked_and_cached_only(open_llm, monkeypatch):
    llm = open_llm()
    forward = llm.model.forward

    def disturbed(batch, cache):
        hidden = forward(batch, cache)
        is_piece = batch.positions[0] > 0 and len(batch.positions) > 1 and len(batch.kv_lens) == 1
        return hidden.flip(-1) if is_piece else hidden

    monkeypatch.setattr(llm.model, "forward", disturbed)
    found = measured(llm)
    assert found["chunked = whole"].token_share < 1 and found["cached prefix = cold"].token_share < 1
    assert found["again = once"].token_share == found["batched = alone"].token_share == 1.0


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (
            {"max_tokens": 2, "page_size": 64, "prompt_tokens": 80},
            {"preempted = undisturbed": "no request had to give way"},
        ),
        (
            {"page_size": 64},
            {"cached prefix = cold": "no prompt fills a page", "preempted = undisturbed": "no request had"},
        ),
    ],
)
def test_way_that_does_not_come_about_is_unmeasured_and_others_are_not(llm, shape, expected):
    check_unmeasured(measured(llm, **shape), expected)


def check_unmeasured(found, expected):
    assert tuple(found) == NAMES
    missing = {name: one.why_not for name, one in found.items() if isinstance(one, Unmeasured)}
    assert missing.keys() == expected.keys()
    assert all(missing[name].startswith(why) and ": raise --" in missing[name] for name, why in expected.items())


def test_batched_is_unmeasured_unless_two_were_computed_at_once(llm):
    equalities = prepared(llm)
    equalities.all = replace(equalities.all, max_num_seqs=1)
    names = ("batched = alone", "preempted = undisturbed", "another order = in order", "same seed, batched = alone")
    found = {one.equality: one for one in equalities.measure()}
    check_unmeasured(found, dict.fromkeys(names, "no two requests were computed at once"))


def test_another_order_is_unmeasured_where_order_and_arrival_stay(llm, monkeypatch):
    equalities = prepared(llm)
    monkeypatch.setattr(equalities.rng, "sample", lambda requests, count: list(requests))
    monkeypatch.setattr(equalities.rng, "randint", lambda first, last: 0)
    found = {one.equality: one for one in equalities.measure()}
    check_unmeasured(found, {"another order = in order": "requests came in the same order, all at once"})
    monkeypatch.setattr(equalities.rng, "sample", lambda requests, count: list(requests)[::-1])
    assert equalities._reordered().evidence == "over 1 steps"


def test_requests_are_random_of_half_to_full_length_and_the_same_each_time():
    one, two = (draw_mixed(20, 30, 4, 272, seed=5) for _ in range(2))
    assert [request.token_ids for request in one] == [request.token_ids for request in two]
    lengths = {request.num_prompt for request in one}
    assert len(lengths) > 5 and min(lengths) >= 15 and max(lengths) <= 30
    assert len({tuple(request.token_ids) for request in one}) == 20
