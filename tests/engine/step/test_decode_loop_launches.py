"""How many copies and kernels a step takes beside its replay: on a GPU each costs the host microseconds."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from firesteel.config import KernelConfig
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.engine.sample.sampler import Sampler
from firesteel.engine.sample.spans import make_rows
from firesteel.engine.step.decode_loop import DecodeLoop
from firesteel.engine.step.step_store import FusedOps, StepStore
from firesteel.model.decode_ops import DecodeOps
from firesteel.model.host_batch import send_tables
from firesteel.types import Plan, Request, SamplingParams, Span

PAGE = 4
ALLOCATES = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided")


class LaunchCounter(TorchDispatchMode):
    """Collects the names of ops that compute or copy."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if not func.is_view and name not in (*ALLOCATES, "aten::detach", "aten::_unsafe_view"):
            self.names.append(name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=["network", "fused"])
def loop(request, llm):
    fused = FusedOps(ops=DecodeOps.choose(llm.device, llm.kernels.ledger)) if request.param == "fused" else None
    cache = new_cache(llm.spec, 40, PAGE, llm.device, torch.float32)
    store = StepStore(
        llm.model, cache, llm.device, KernelConfig(), fused=fused, idle_page=39, most_requests=8, max_context=64
    )
    return DecodeLoop(store, Sampler(llm.spec.vocab_size, llm.device.torch_device))


def plan_of(*drafts, **params):
    """Returns a plan of a request per tuple of drafted tokens."""
    spans = []
    for number, draft_ids in enumerate(drafts):
        request = Request(request_id=str(number), token_ids=[5] * 6, params=SamplingParams(**params))
        pages = [list(range(first, first + 3)) for first in (1 + 6 * number, 4 + 6 * number)]
        spans.append(
            Span(
                request=request,
                token_ids=request.token_ids,
                start=5,
                end=6,
                full_pages=pages[0],
                window_pages=pages[1],
                num_logits=1 + len(draft_ids),
                draft_ids=draft_ids,
            )
        )
    return Plan(spans=spans)


def count_launches(loop, plan, token_ids=None):
    """Returns the ops of loading a step, and those after its replay, which is left out."""
    loop.begin(plan, token_ids)  # makes the step
    with torch.inference_mode(), LaunchCounter() as loading:
        loop.begin(plan, token_ids)
    logits = torch.randn(loop.current.step.num_requests, loop.store.model.spec.vocab_size)
    loop._ready = replace(loop.current, launch=lambda: logits)
    with torch.inference_mode(), LaunchCounter() as drawing:
        loop.launch(plan, [row for span in plan.spans for row in make_rows(span)])
    return loading.names, drawing.names


def embeds(loop):
    """Returns the ops that begin the residual stream; with weights of another type than activations one more."""
    return ["index", "copy_"] if loop.store.fused is not None else []


@pytest.mark.parametrize("drafts", [((7, 8, 9),), ((7, 8), (9, 1, 2), ()), ((), ())], ids=str)
def test_a_step_is_loaded_with_two_copies_and_read_with_one(loop, drafts):
    """Verifying steps took about twenty."""
    loading, drawing = count_launches(loop, plan_of(*drafts))
    assert loading == ["copy_", "copy_", *embeds(loop)]
    assert drawing == ["copy_"]


def test_tokens_that_the_host_does_not_know_take_a_copy_more(loop):
    loading, _ = count_launches(loop, plan_of((), ()), torch.tensor([3, 4]))
    assert loading == ["copy_", "copy_", "copy_", *embeds(loop)]


def test_tokens_drawn_after_drafts_are_not_fed_to_a_step_that_is_loaded_anyway(loop):
    plain, drafted = (count_launches(loop, plan_of(drafts, logprobs=1))[1] for drafts in ((), (7,)))
    assert len(plain) == len(drafted) + 1 + len(embeds(loop))


@pytest.mark.parametrize(("pages", "columns"), [(16, 16), (16384, 3)])
def test_small_tables_are_copied_whole_and_of_large_ones_what_is_used(pages, columns):
    """A copy into a part of a tensor takes a copy to the device and a launch there."""
    target = torch.full((2, 2, pages), 9)
    full, window = torch.tensor([[1, 2, 3]]).numpy(), torch.tensor([[4, 5, 6]]).numpy()
    with LaunchCounter() as copies:
        send_tables(full, window, target)
    assert copies.names == ["copy_"]
    assert target[:, 0, :3].tolist() == [[1, 2, 3], [4, 5, 6]]
    changed = (target != 9).nonzero()
    assert int(changed[:, 2].max()) + 1 == columns
