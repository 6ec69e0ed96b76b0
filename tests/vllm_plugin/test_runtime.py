"""Steps of vLLM over its pages: against the network over pages of our own, and graphs against single ops."""

from dataclasses import replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.model.decode import DecodeStep
from firesteel.model.host_batch import HostBatch
from firesteel.model.prompt_sizes import find_size
from firesteel.model.prompt_step import PromptStep
from firesteel.model.spec import PRESETS
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import Batch, KvView
from tests.vllm_plugin.steps import CONTEXT, PAGE, open_runtime, plain_pages, walk

SMALL = replace(
    PRESETS["gpt-oss-20b"],
    num_layers=2,
    windows=(128, None),
    hidden_size=256,
    intermediate_size=192,
    num_heads=8,
    num_kv_heads=4,
    num_experts=8,
    vocab_size=512,
)
WIDE = replace(PRESETS["gpt-oss-120b"], num_layers=2, windows=(128, None), vocab_size=4096)


def as_batch(step):
    """Returns a step without its padding, for pages in which block b is page b."""
    count = int(step.query_starts[-1])
    requests = int((step.kv_lens > 0).sum())
    return Batch(
        token_ids=step.token_ids[:count].long(),
        positions=step.positions[:count],
        query_starts=step.query_starts[: requests + 1].long(),
        kv_lens=step.kv_lens[:requests].long(),
        full=KvView(page_table=step.full_table[:requests].long(), slots=step.full_slots[:count]),
        window=KvView(page_table=step.window_table[:requests].long(), slots=step.window_slots[:count]),
        logit_rows=torch.arange(count, device=step.token_ids.device),
    )


@torch.inference_mode()
def test_runtime_computes_what_the_network_does_over_our_own_pages():
    runtime, device = open_runtime(SMALL, "cpu"), find_device("cpu")
    plain = plain_pages(SMALL, device)
    for step in walk(device.torch_device):
        residual, *_ = runtime.run(step)
        batch = as_batch(step)
        expected = runtime.network.forward_residual(batch, plain)
        # float32, sums in free order
        assert torch.allclose(residual[: len(expected)], expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_prompts_give_the_logits_of_each_last_token():
    runtime, device = open_runtime(SMALL, "cpu"), find_device("cpu")
    plain, num_prompts = plain_pages(SMALL, device), 0
    for step in walk(device.torch_device):
        _, logits, kind = runtime.run(step)
        last = (step.query_starts[1:] - 1).long()[: int((step.kv_lens > 0).sum())]
        expected = runtime.network.logits(runtime.network.forward(replace(as_batch(step), logit_rows=last), plain))
        if kind.startswith("prompt"):
            num_prompts += 1
            # float32, sums in free order
            assert torch.allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert num_prompts >= 3


def run_all(runtime, device):
    results = []
    for step in walk(device):
        residual, logits, kind = runtime.run(step)
        count = int(step.query_starts[-1])
        results.append((residual[:count].clone(), None if logits is None else logits[:count].clone(), kind))
    return results


@pytest.mark.gpu
@torch.inference_mode()
def test_prompt_graphs_give_the_bits_of_single_ops():
    device = find_device("cuda")
    weights = synthetic_weights(WIDE, device, seed=3)
    plain = open_runtime(WIDE, "cuda", weights=weights)
    torch.manual_seed(0)
    expected = run_all(plain, device.torch_device)
    runtime = open_runtime(WIDE, "cuda", weights=weights)
    runtime.compile([*range(1, 9), 16])
    runtime.capture_prompts()
    torch.manual_seed(0)
    actual = run_all(runtime, device.torch_device)
    kinds = [kind for *_, kind in actual]
    assert any(kind.startswith("prompt graph") for kind in kinds)
    assert any(kind.startswith("fused") for kind in kinds), kinds
    for (residual, logits, _), (wanted, wanted_logits, kind) in zip(actual, expected, strict=True):
        assert residual.isfinite().all(), kind
        assert torch.equal(residual, wanted), kind
        if wanted_logits is not None:
            assert torch.equal(logits, wanted_logits), kind


@pytest.mark.gpu
@torch.inference_mode()
def test_fused_steps_give_the_bits_of_a_decode_step_over_our_own_pages():
    """Page numbers are all that differs. The steps between are prompts, whose keys and values are copied."""
    device = find_device("cuda")
    runtime = open_runtime(WIDE, "cuda", weights=synthetic_weights(WIDE, device, seed=3))
    plain, width = plain_pages(WIDE, device), runtime.inputs.full_table.shape[1]
    torch.manual_seed(0)
    num_fused = 0
    for step in walk(device.torch_device):
        residual, _, kind = runtime.run(step)
        if kind.startswith("fused") and step.num_requests == int((step.kv_lens > 0).sum()):
            ops = runtime.fused.fused.ops
            ours = DecodeStep(runtime.network, plain, ops, num_requests=step.num_requests, num_pages=width)
            ours.load(as_batch(step))
            assert torch.equal(ours.run_layers(), residual), step.num_requests
            num_fused += 1
        for theirs, our in zip(runtime.cache.keys + runtime.cache.values, plain.keys + plain.values, strict=True):
            our.copy_(theirs[::2][: len(our)])
    assert num_fused >= 5


def as_host_batch(batch):
    """Returns the numbers of a batch as the engine lays them out, with the last row of each request wanted."""
    whole = replace(batch, logit_rows=batch.query_starts[1:] - 1)
    names = ("token_ids", "positions", "query_starts", "kv_lens", "logit_rows")
    numbers = {name: getattr(whole, name).cpu().numpy() for name in names}
    views = {"full": batch.full, "window": batch.window}
    tables = {f"{kind}_table": view.page_table.cpu().numpy() for kind, view in views.items()}
    slots = {f"{kind}_slots": view.slots.cpu().numpy() for kind, view in views.items()}
    return HostBatch(**numbers, **tables, **slots)


@pytest.mark.gpu
@torch.inference_mode()
def test_prompts_give_the_bits_of_our_engines_prompt_step():
    """Logits, keys and values; a context that is no multiple of the alignment of page tables."""
    device = find_device("cuda")
    runtime = open_runtime(WIDE, "cuda", weights=synthetic_weights(WIDE, device, seed=3), context=CONTEXT - 48)
    runtime.compile([1, 8])
    runtime.capture_prompts()
    plain = plain_pages(WIDE, device)
    room = torch.empty(16, WIDE.vocab_size, dtype=torch.float32, device=device.torch_device)
    torch.manual_seed(0)
    num_prompts = 0
    for step in walk(device.torch_device):
        _, logits, kind = runtime.run(step)
        if kind.startswith("prompt"):
            size = find_size(step.num_tokens, step.num_requests, runtime.prompts.most_requests)
            num_pages = -(-(CONTEXT - 48) // PAGE)
            ours = PromptStep(runtime.network, plain, size, num_pages=num_pages, logits=room)
            batch = as_batch(step)
            narrow = [
                replace(view, page_table=view.page_table[:, :num_pages]) for view in (batch.full, batch.window)
            ]
            ours.load(as_host_batch(replace(batch, full=narrow[0], window=narrow[1])))
            assert torch.equal(ours.run()[: step.num_requests], logits), kind
            num_prompts += 1
        for theirs, our in zip(runtime.cache.keys + runtime.cache.values, plain.keys + plain.values, strict=True):
            stored = theirs[::2][: len(our)].nan_to_num()  # NaN: never written
            assert torch.equal(our, stored) or not kind.startswith("prompt")
            our.copy_(stored)
    assert num_prompts >= 3


@pytest.mark.gpu
@torch.inference_mode()
def test_prompts_on_the_gpu_agree_with_the_network_over_our_own_pages():
    """bf16 rounds each value by 2^-9; where experts are near ties, a row takes others: few rows may."""
    device = find_device("cuda")
    runtime = open_runtime(WIDE, "cuda", weights=synthetic_weights(WIDE, device, seed=3))
    plain = plain_pages(WIDE, device)
    torch.manual_seed(0)
    for step in walk(device.torch_device):
        residual, _, kind = runtime.run(step)
        expected = runtime.network.forward_residual(as_batch(step), plain)
        if step.num_tokens < 20:
            continue  # too few rows to tell an error from another choice of experts
        errors = (residual.float() - expected.float()).norm(dim=1) / expected.float().norm(dim=1)
        assert (errors < 2e-2).float().mean() > 0.8, kind
