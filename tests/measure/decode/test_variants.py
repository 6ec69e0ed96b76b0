"""Variants of a decoding step: comparison, timing, restored inputs."""

from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch

from firesteel.config import KernelConfig
from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.errors import KernelError
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.operands import Operands
from firesteel.measure.decode import variants
from firesteel.measure.decode.steps import Call, fill_pages, first_batch, lay_out
from firesteel.measure.decode.variants import StepVariant, compare_variants, list_variants, repeat, time_groups
from firesteel.model.decode import DecodeStep
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import PRESETS
from firesteel.model.synthetic import synthetic_weights
from tests.measure.decode.small_steps import CPU, OURS, ops_of, step_of

GPU = replace(CPU, capability=(9, 0), name="GPU")
CONTEXTS = [9, 30]
PLAIN, DEPENDENT = StepVariant(False, False), StepVariant(False, True)


def test_comparing_equal_variants_restores_the_inputs(llm):
    step = step_of(llm, CONTEXTS)
    begin = step.inputs.copy()
    compare_variants(step, [PLAIN, DEPENDENT], CPU, 12)
    assert all(map(torch.equal, begin, step.inputs.tensors()))


@pytest.mark.parametrize("group", OURS)
def test_variant_that_differs_in_any_group_is_detected(llm, group):
    """From the fifth step on, dependent launches of the op change one value slightly."""
    step = step_of(llm, CONTEXTS)
    op, calls = getattr(step.ops, group), []

    def spoil(operands):
        result = op(operands)
        calls.append(operands.dependent)
        if operands.dependent and sum(calls) > 4 * (1 if group in ("lm_head", "sample") else llm.spec.num_layers):
            changed = {"qkv": 0, "lm_head": 0}.get(group)
            tensor = step.inputs.r if group == "sample" else result if changed is None else result[changed]
            tensor.view(-1)[7] += 0.01 if group != "sample" else 1.0
        return result

    step.ops = step.ops._replace(**{group: spoil})
    with pytest.raises(
        KernelError, match=r"eager, plain launch and eager, dependent launch differ over 12 steps: "
    ):
        compare_variants(step, [PLAIN, DEPENDENT], CPU, 12)


def test_variant_that_does_not_repeat_its_bits_is_detected(llm):
    step = step_of(llm, CONTEXTS)
    op = step.ops.o

    def noisy(operands):
        operands.r.add_(1e-3 * torch.randn_like(operands.r))
        return op(operands)

    step.ops = step.ops._replace(o=noisy)
    with pytest.raises(KernelError, match=r"eager, plain launch and eager, plain launch differ"):
        compare_variants(step, [PLAIN], CPU, 3)


def test_delays_run_every_variant_once_more(llm, monkeypatch):
    is_delayed, opened = [False], []

    @contextmanager
    def noted():
        is_delayed[0] = True
        yield
        is_delayed[0] = False

    plain_open = StepVariant.open
    monkeypatch.setattr(variants, "with_delays", noted)
    monkeypatch.setattr(
        StepVariant,
        "open",
        lambda variant, *rest: opened.append((variant, is_delayed[0])) or plain_open(variant, *rest),
    )
    compare_variants(step_of(llm, CONTEXTS), [PLAIN, DEPENDENT], CPU, 2)
    assert opened == [(PLAIN, False), (DEPENDENT, False)]
    opened.clear()
    compare_variants(step_of(llm, CONTEXTS), [PLAIN, DEPENDENT], CPU, 2, delays=True)
    assert opened == [(PLAIN, False), (DEPENDENT, False), (PLAIN, True), (DEPENDENT, True)]


def test_opening_a_variant_sets_the_launch_mode_and_captures_only_graphs(llm, monkeypatch):
    captured = []
    monkeypatch.setattr(variants, "capture", lambda run, step, device: captured.append(run) or "replay")
    step = step_of(llm, CONTEXTS)
    for variant in list_variants(GPU, KernelConfig()):
        run = variant.open(step, GPU)
        assert step.dependent == variant.dependent
        assert run == ("replay" if variant.graph else step.run)
    assert captured == [step.run, step.run]


def test_groups_are_timed_separately_and_inputs_restored(llm):
    step = step_of(llm, CONTEXTS)
    begin = step.inputs.copy()
    times_ms = time_groups(step, PLAIN, CPU, steps=3)
    assert tuple(times_ms) == OURS and all(time > 0 for time in times_ms.values())
    assert all(map(torch.equal, begin, step.inputs.tensors()))


def test_op_called_once_per_step_is_repeated_and_its_time_divided(llm, monkeypatch):
    ledger, layers = llm.model.kernels.ledger, llm.spec.num_layers
    calls = []

    def once(run, reset, device, *, steps):
        before = sum(entry.calls for entry in ledger.entries.values())
        run()
        calls.append(sum(entry.calls for entry in ledger.entries.values()) - before)
        return (6.0,)

    monkeypatch.setattr(variants, "time_steps", once)
    times_ms = time_groups(step_of(llm, CONTEXTS), PLAIN, CPU, steps=1)
    assert calls == [layers] * 8
    assert list(times_ms.values()) == [6.0] * 6 + [6.0 / layers] * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedOperands(Operands):
    number: int
    dependent: bool


def test_only_the_first_repeated_call_waits_for_earlier_work():
    launches = []
    calls = [Call(launches.append, NumberedOperands(number=number, dependent=True), None) for number in range(3)]
    repeat(calls)()
    assert [(launch.number, launch.dependent) for launch in launches] == [(0, False), (1, True), (2, True)]


@pytest.mark.gpu
@pytest.mark.parametrize("dense", [(), ("qkv", "o", "lm_head")], ids=["as shipped", "all MXFP4"])
@pytest.mark.parametrize("num_requests", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=["bf16 pages", "fp8 pages"])
def test_all_variants_give_the_same_bits_on_a_gpu(dtype, dense, num_requests):
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
    chosen = [*list_variants(device, KernelConfig()), DEPENDENT]
    assert len(set(chosen)) == 4
    compare_variants(step, chosen, device, 200, delays=True)
