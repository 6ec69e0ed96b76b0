"""Residuals that the three kinds of steps keep: those that the network keeps for the same tokens."""

import pytest
import torch

from firesteel.measure.decode.steps import watch
from firesteel.model.decode_ops import GROUPS
from firesteel.model.host_batch import HostBatch
from firesteel.model.prompt_sizes import PromptSize
from firesteel.model.prompt_step import PromptStep
from firesteel.types import Taps
from tests.model.test_decode import BASE, clone, model_of
from tests.model.test_verified_rows import begin, open_step
from tests.model.verified_rows import prompts_of, rows_of

REQUESTS = [(14, 3), (0, 2), (30, 1)]
NUM_ROWS = sum(rows for _, rows in REQUESTS)
BOUNDARIES = [(0,), (1, 3), (4,), (3, 0, 4, 2)]
HIDDEN, LAYERS = BASE.hidden_size, BASE.num_layers


def new_taps(boundaries, num_rows=NUM_ROWS + 1):
    return Taps(boundaries=boundaries, rows=torch.full((num_rows, len(boundaries) * HIDDEN), torch.nan))


@pytest.fixture(scope="module")
def model():
    return model_of(BASE)


def expect(model, given, boundaries, cache):
    """Returns the rows that `forward` keeps, and its logits."""
    taps, pages = new_taps(boundaries, NUM_ROWS), clone(cache)
    with torch.inference_mode():
        logits = model.logits(model.forward(given, pages, taps=taps))
    return taps.rows, logits


@pytest.mark.parametrize("kind", ["fused", "network"])
@pytest.mark.parametrize("boundaries", BOUNDARIES, ids=str)
def test_decoding_steps_keep_what_the_network_keeps(model, kind, boundaries):
    cache, drafts, contexts, pages = begin(model, REQUESTS)
    taps = new_taps(boundaries)
    step = open_step(kind, model, clone(cache), NUM_ROWS, pages, taps)
    assert step.taps is taps
    batch = rows_of(drafts, contexts, pages, cache)
    expected, logits = expect(model, batch, boundaries, cache)
    for _ in range(2):
        step.load(batch)
        actual = step.run()[:NUM_ROWS]
        torch.testing.assert_close(taps.rows[:NUM_ROWS], expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(actual, logits, atol=1e-3, rtol=1e-3)
        taps.rows.fill_(torch.nan)


def host_batch(batch, logit_rows):
    numbers = {
        "token_ids": batch.token_ids,
        "positions": batch.positions,
        "query_starts": batch.query_starts,
        "kv_lens": batch.kv_lens,
        "full_table": batch.full.page_table,
        "full_slots": batch.full.slots,
        "window_table": batch.window.page_table,
        "window_slots": batch.window.slots,
        "logit_rows": torch.tensor(logit_rows),
    }
    return HostBatch(**{name: tensor.numpy() for name, tensor in numbers.items()})


def open_prompts(model, cache, pages, taps):
    logits = torch.empty(3, model.spec.vocab_size)
    return PromptStep(model, cache, PromptSize(16, 3), num_pages=pages.width, logits=logits, taps=taps)


@pytest.mark.parametrize("boundaries", BOUNDARIES, ids=str)
def test_prompt_steps_keep_what_the_network_keeps(model, boundaries):
    cache, drafts, contexts, pages = begin(model, REQUESTS)
    taps = new_taps(boundaries, 16)
    step = open_prompts(model, clone(cache), pages, taps)
    batch = prompts_of(drafts, contexts, pages, cache)
    expected, logits = expect(model, batch, boundaries, cache)
    step.load(host_batch(batch, [2, 4, 5]))
    actual = step.run()
    assert step.taps is taps
    torch.testing.assert_close(taps.rows[:NUM_ROWS], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(actual, logits[[2, 4, 5]], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("boundaries", [(2,), (2, 4), (4,), (1, 3)], ids=str)
def test_warming_up_computes_as_many_rows_as_a_run(model, boundaries, monkeypatch):
    """The second layer is the last one that a warm-up computes, and the fourth the last of all."""
    assert model.num_layers_of_each_kind == 2
    cache, drafts, contexts, pages = begin(model, REQUESTS)
    step = open_prompts(model, cache, pages, new_taps(boundaries, 16))
    step.load(host_batch(prompts_of(drafts, contexts, pages, cache), [2, 4, 5]))
    rows, plain = [], model.mix
    monkeypatch.setattr(model, "mix", lambda x, *rest: rows.append(x.plain.shape[0]) or plain(x, *rest))
    step.warm_up()
    warmed = set(rows)
    rows.clear()
    step.run()
    assert warmed == set(rows) == ({16} if 4 in boundaries else {16, 3})


def test_boundaries_beyond_the_layers_of_a_warm_up_are_skipped(model):
    cache, _, _, pages = begin(model, REQUESTS)
    taps = new_taps((1, 3))
    step = open_step("network", model, cache, NUM_ROWS, pages, taps)
    step.warm_up()
    kept = taps.rows.isfinite().all(0)
    assert kept[:HIDDEN].all() and not kept[HIDDEN:].any()


@pytest.mark.parametrize("dependent", [True, False])
def test_kernel_after_a_copy_waits_for_everything(model, dependent):
    cache, drafts, contexts, pages = begin(model, [(14, 3)])
    step = open_step("fused", model, cache, 3, pages, new_taps((2, 4), 3))
    step.dependent = dependent
    step.load(rows_of(drafts, contexts, pages, cache))
    calls = watch(step)
    assert [call.operands.dependent for call in calls["qkv"]] == [
        number in (1, 3) and dependent for number in range(4)
    ]
    assert [call.operands.dependent for call in calls["lm_head"]] == [False]
    others = [
        call.operands.dependent for group in GROUPS if group not in ("qkv", "lm_head") for call in calls[group]
    ]
    assert others == [dependent] * (5 * LAYERS + 1)
