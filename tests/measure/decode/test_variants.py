"""The ways to run a decoding step: what is compared, timed and put back."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from firesteel.config import KernelConfig
from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.errors import KernelError
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.measure.decode import variants
from firesteel.measure.decode.steps import Call, fill_pages, first_batch, lay_out
from firesteel.measure.decode.variants import StepVariant, compare_variants, list_variants, repeat, time_groups
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import GROUPS, DecodeOps
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import PRESETS
from firesteel.model.synthetic import synthetic_weights

OURS = tuple(group for group in GROUPS if group != "experts")  # rows of Kindling's experts differ in length

CPU = find_device("cpu")
GPU = replace(CPU, capability=(9, 0), name="GPU")
PLAIN, DEPENDENT = StepVariant(False, False), StepVariant(False, True)


def ops_of(model, device=CPU):
    return DecodeOps.choose(device, model.kernels.ledger)


def step_of(llm, contexts=(9, 30), room=40, dtype=torch.float32, device=CPU):
    pages = lay_out(contexts, room=room, page_size=8, window=128, seed=0)
    cache = new_cache(llm.spec, pages.count, 8, device, dtype)
    fill_pages(cache, seed=0)
    step = DecodeStep(llm.model, cache, ops_of(llm.model), num_requests=len(contexts), num_pages=pages.width)
    step.load(first_batch(list(range(len(contexts))), contexts, pages, cache))
    return step


def test_ways_that_agree_leave_the_inputs_as_they_were(llm):
    step = step_of(llm)
    begin = step.inputs.copy()
    compare_variants(step, [PLAIN, DEPENDENT], CPU, 12)
    assert all(map(torch.equal, begin, step.inputs.tensors()))


@pytest.mark.parametrize("group", OURS)
def test_way_that_differs_by_a_bit_in_any_group_is_found(llm, group):
    """From the fifth step on, where launches are dependent, the op changes one value a little."""
    step = step_of(llm)
    op, calls = getattr(step.ops, group), []

    def spoil(*args):
        result = op(*args)
        calls.append(args[-1])
        if args[-1] and sum(calls) > 4 * (1 if group in ("lm_head", "sample") else llm.spec.num_layers):
            changed = {"qkv": 0, "lm_head": 0}.get(group)
            tensor = step.inputs.r if group == "sample" else result if changed is None else result[changed]
            tensor.view(-1)[7] += 0.01 if group != "sample" else 1.0
        return result

    step.ops = step.ops._replace(**{group: spoil})
    with pytest.raises(
        KernelError, match=r"eager, plain launch and eager, dependent launch differ over 12 steps: "
    ):
        compare_variants(step, [PLAIN, DEPENDENT], CPU, 12)


def test_way_that_does_not_repeat_itself_is_found(llm):
    step = step_of(llm)
    op = step.ops.o

    def noisy(mixed, weight, bias, r, *others):
        return op(mixed, weight, bias, r.add_(1e-3 * torch.randn_like(r)), *others)

    step.ops = step.ops._replace(o=noisy)
    with pytest.raises(KernelError, match=r"eager, plain launch and eager, plain launch differ"):
        compare_variants(step, [PLAIN], CPU, 3)


def test_delays_run_every_way_once_more(llm, monkeypatch):
    is_delayed, opened = [False], []

    @contextmanager
    def noted():
        is_delayed[0] = True
        yield
        is_delayed[0] = False

    plain_open = StepVariant.open
    monkeypatch.setattr(variants, "with_delays", noted)
    monkeypatch.setattr(
        StepVariant, "open", lambda way, *rest: opened.append((way, is_delayed[0])) or plain_open(way, *rest)
    )
    compare_variants(step_of(llm), [PLAIN, DEPENDENT], CPU, 2)
    assert opened == [(PLAIN, False), (DEPENDENT, False)]
    opened.clear()
    compare_variants(step_of(llm), [PLAIN, DEPENDENT], CPU, 2, delays=True)
    assert opened == [(PLAIN, False), (DEPENDENT, False), (PLAIN, True), (DEPENDENT, True)]


def test_opening_a_way_sets_the_launch_and_captures_only_graphs(llm, monkeypatch):
    captured = []
    monkeypatch.setattr(variants, "capture", lambda run, step, device: captured.append(run) or "replay")
    step = step_of(llm)
    for way in list_variants(GPU, KernelConfig()):
        run = way.open(step, GPU)
        assert step.dependent == way.dependent
        assert run == ("replay" if way.graph else step.run)
    assert captured == [step.run, step.run]


def test_groups_are_timed_one_by_one_and_inputs_put_back(llm):
    step = step_of(llm)
    begin = step.inputs.copy()
    found = time_groups(step, PLAIN, CPU, steps=3)
    assert tuple(found) == OURS and all(time > 0 for time in found.values())
    assert all(map(torch.equal, begin, step.inputs.tensors()))


def test_what_is_called_once_a_step_is_repeated_and_its_time_divided(llm, monkeypatch):
    ledger, layers = llm.model.kernels.ledger, llm.spec.num_layers
    calls = []

    def once(run, reset, device, *, steps):
        before = sum(entry.calls for entry in ledger.entries.values())
        run()
        calls.append(sum(entry.calls for entry in ledger.entries.values()) - before)
        return (6.0,)

    monkeypatch.setattr(variants, "time_steps", once)
    found = time_groups(step_of(llm), PLAIN, CPU, steps=1)
    assert calls == [layers] * 8
    assert list(found.values()) == [6.0] * 6 + [6.0 / layers] * 2


def test_only_the_first_of_repeated_calls_waits_for_all_before():
    launches = []
    calls = [
        Call(lambda number, dependent: launches.append((number, dependent)), (n, True), None) for n in range(3)
    ]
    repeat(calls)()
    assert launches == [(0, False), (1, True), (2, True)]


@pytest.mark.gpu
@pytest.mark.parametrize("dense", [(), ("qkv", "o", "lm_head")], ids=["as shipped", "all MXFP4"])
@pytest.mark.parametrize("num_requests", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=["bf16 pages", "fp8 pages"])
def test_all_ways_give_the_same_bits_on_a_gpu(dtype, dense, num_requests):
    device = find_device("cuda")
    spec = replace(
        PRESETS["gpt-oss-120b"], num_layers=4, windows=(128, None) * 2, vocab_size=4096, mxfp4_layers=dense
    )
    model = GptOss(
        spec, synthetic_weights(spec, device, seed=1), Kernels(device, {}, Ledger()), device, max_context=4096
    )
    contexts = [0, 127, 128, 300, 1000, 2047, 64, 63][:num_requests]
    pages = lay_out(contexts, room=200, page_size=64, window=128, seed=0)
    cache = new_cache(spec, pages.count, 64, device, dtype)
    fill_pages(cache, seed=0)
    step = DecodeStep(model, cache, ops_of(model, device), num_requests=num_requests, num_pages=pages.width)
    step.load(first_batch(list(range(num_requests)), contexts, pages, cache))
    ways = [*list_variants(device, KernelConfig()), DEPENDENT]
    assert len(set(ways)) == 4
    compare_variants(step, ways, device, 200, delays=True)
