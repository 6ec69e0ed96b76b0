"""Page layout, traces and timing of decoding steps."""

import pytest
import torch

from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.measure.decode.steps import (
    PASS_STEPS,
    STALE,
    Trace,
    fill_pages,
    first_batch,
    lay_out,
    time_steps,
    trace,
    watch,
)
from firesteel.model.decode_ops import GROUPS
from tests.measure.decode.small_steps import CPU, OURS, step_of


@pytest.mark.parametrize("contexts", [[0], [7], [8], [100, 3, 31]])
@pytest.mark.parametrize("window", [1, 8, 20, 0])
def test_every_held_and_future_token_has_its_own_slot(contexts, window):
    room, size = 13, 8
    pages = lay_out(contexts, room=room, page_size=size, window=window, seed=3)
    owned = []
    for row, context in enumerate(contexts):
        for position in range(context + room + 1):
            owned.append(("full", row, position // size, int(pages.full[row, position // size])))
        for position in range(max(0, context - window + 1), context + room + 1):
            owned.append(("window", row, position // size, int(pages.window[row, position // size])))
    numbers = [page for *_, page in set(owned)]
    assert len(numbers) == len(set(numbers)) == pages.count - 1
    assert set(numbers) == set(range(1, pages.count)) and STALE not in numbers


def test_pages_before_the_window_are_stale_and_neighbours_are_scattered():
    pages = lay_out([1000], room=10, page_size=8, window=16, seed=0)
    assert int((pages.window != STALE).sum()) == 4 and (pages.window[0, : 985 // 8] == STALE).all()
    assert (pages.full[0].diff() != 1).float().mean() > 0.9
    again = lay_out([1000], room=10, page_size=8, window=16, seed=0)
    assert torch.equal(pages.full, again.full)


def test_first_batch_follows_the_held_tokens(llm):
    pages = lay_out([0, 21], room=4, page_size=8, window=128, seed=0)
    batch = first_batch([3, 4], [0, 21], pages, new_cache(llm.spec, pages.count, 8, CPU, torch.float32))
    assert batch.token_ids.tolist() == [3, 4] and batch.positions.tolist() == [0, 21]
    assert batch.kv_lens.tolist() == [1, 22] and batch.query_starts.tolist() == [0, 1, 2]
    assert batch.full.slots.tolist() == [8 * int(pages.full[0, 0]), 8 * int(pages.full[1, 2]) + 5]
    assert batch.window.slots[1] == 8 * int(pages.window[1, 2]) + 5


def test_same_seed_fills_pages_with_the_same_values(llm):
    caches = [new_cache(llm.spec, 4, 8, CPU, torch.float32) for _ in range(3)]
    for cache, seed in zip(caches, (1, 1, 2), strict=True):
        fill_pages(cache, seed=seed)
    first, same, other = (cache.values[0] for cache in caches)
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert 0.9 < first.std() < 1.1 and not torch.equal(first, caches[0].keys[0])


def test_trace_holds_tokens_logits_and_written_pages_and_restores_inputs(llm):
    step = step_of(llm, [9, 30])
    begin = step.inputs.copy()
    traced = trace(step, step.run, 5)
    assert all(map(torch.equal, begin, step.inputs.tensors()))
    logits = [step.run() for _ in range(5)]
    assert torch.equal(traced.tokens[-1], step.inputs.token_ids) and torch.equal(traced.logits, logits[-1])
    assert len(traced.written) == 2 * llm.spec.num_layers and traced.written[0].shape[0] == 10
    table = (step.inputs.full if llm.spec.windows[0] is None else step.inputs.window).page_table
    page, offset = int(table[1, 32 // 8]), 32 % 8
    assert torch.equal(traced.written[0][2 * 2 + 1], step.cache.keys[0][page, :, offset])


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("tokens", "tokens from step 1 on"),
        ("written", "values of layer 1 in 1 places"),
        ("logits", "logits of the"),
    ],
)
def test_difference_names_the_first_part_that_differs(part, words):
    def zeros():
        return Trace(
            tokens=torch.zeros(3, 2), logits=torch.zeros(2, 5), written=[torch.zeros(6, 2) for _ in range(4)]
        )

    one, other = zeros(), zeros()
    assert one.difference(other) is None
    changed = other.written[3] if part == "written" else getattr(other, part)
    changed[1, 0] = 1
    difference = one.difference(other)
    assert difference is not None and words in difference


def test_watching_a_step_returns_its_calls_and_keeps_its_ops(llm):
    step = step_of(llm, [9])
    ops = step.ops
    calls = watch(step)
    assert step.ops is ops and tuple(calls) == GROUPS
    assert [len(calls[group]) for group in OURS] == [llm.spec.num_layers] * 6 + [1, 1] and not calls["experts"]
    assert step.inputs.positions.tolist() == [10]
    logits = calls["lm_head"][0].result[0]
    assert logits.shape == (1, llm.spec.vocab_size)


def test_every_pass_starts_from_the_same_inputs():
    events = []
    times_ms = time_steps(lambda: events.append("run"), lambda: events.append("reset"), CPU, steps=PASS_STEPS + 3)
    assert len(times_ms) == PASS_STEPS + 3 and all(time >= 0 for time in times_ms)
    warm, full, rest = ["reset"] + ["run"] * PASS_STEPS, ["reset"] + ["run"] * PASS_STEPS, ["reset"] + ["run"] * 3
    assert events == warm + full + rest


@pytest.mark.gpu
def test_gpu_times_cover_the_whole_step():
    device = find_device("cuda")
    data = torch.zeros(256 << 20, dtype=torch.uint8, device=device.torch_device)
    times_ms = time_steps(lambda: data.add_(1), lambda: None, device, steps=50)
    assert len(times_ms) == 50 and sorted(times_ms)[25] > 1e3 * 2 * data.nbytes / 8e12
