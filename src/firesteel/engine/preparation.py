"""Makes all kernels and steps that requests need, before the first request.

Kernels are compiled in parallel or read from disk; then each step runs once on idle inputs and is captured.
Anything compiled or captured later is counted as late, and a warning names it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from firesteel.engine.engine import Engine
from firesteel.engine.speculate.draft_store import DraftStore
from firesteel.engine.step.batch import build_batch
from firesteel.engine.step.prompt_store import PromptStore
from firesteel.engine.step.step_store import StepStore
from firesteel.kernels.ahead import compile_ahead, listen
from firesteel.model.graphs import uncounted
from firesteel.model.prompt_sizes import TOKENS
from firesteel.types import Plan, Request, SamplingParams, Span

Progress = Callable[[int, int], None]  # done, in total
_log = logging.getLogger(__name__)


@torch.inference_mode()
def prepare(engine: Engine, progress: Progress | None = None) -> None:
    """Prepares `engine` for its first request; `progress` is called with kernels and steps made, and in total."""
    start, is_cuda = time.perf_counter(), engine.device.is_cuda
    engine.device.use()
    stores: list[PromptStore | StepStore | DraftStore] = [engine.prompts, engine.loop.store]
    if engine.drafts is not None:
        stores.append(engine.drafts)
    total = sum(len(store.sizes()) for store in stores)
    built = _compile(engine, total, progress) if is_cuda else 0
    done = built

    def report() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, built + total)

    for store in stores:
        store.prepare(report)
    engine.sampler.prepare()
    if engine.speculator is not None:
        engine.speculator.policy.start()
    if is_cuda:
        call_outside(engine)
        torch.cuda.synchronize()
        listen(engine.count_late)
    _log.info("made %d kernels and %d steps in %.1f s", built, total, time.perf_counter() - start)


def _compile(engine: Engine, steps: int, progress: Progress | None) -> int:
    """Compiles every kernel that steps and op-by-op plans launch; returns their number."""
    ledger = engine.runner.model.kernels.ledger
    with uncounted(ledger), compile_ahead() as ahead:
        engine.prompts.call_ops()
        engine.loop.store.call_ops()
        if engine.drafts is not None:
            engine.drafts.call_ops()
        engine.sampler.prepare()
        call_outside(engine)
        ahead.wait(None if progress is None else lambda done, total: progress(done, total + steps))
        return len(ahead)


def call_outside(engine: Engine) -> None:
    """Calls the ops of plans that fit no prompt step, and of drafters' rows; they write to the idle page."""
    model, most = engine.runner.model, min(engine.config.max_num_batched_tokens, engine.scheduler.max_context)
    for count in {min(count, most) for count in (*TOKENS, TOKENS[-1] + 1, most)}:
        if engine.drafts is not None:
            engine.drafts.call_outside(count)
        if engine.prompts.is_on and count <= TOKENS[-1]:
            continue
        page_size = engine.config.page_size
        request = Request(request_id="", token_ids=[0] * count, params=SamplingParams())
        pages = [engine.idle_page] * -(-count // page_size)
        span = Span(
            request=request,
            token_ids=request.token_ids,
            start=0,
            end=count,
            full_pages=pages,
            window_pages=pages,
            num_logits=1,
        )
        batch = build_batch(Plan(spans=[span]), page_size, engine.device.torch_device)
        taps = engine.prompts.memory.find_taps(count)
        model.logits(model.forward(batch, engine.runner.cache, model.num_layers_of_each_kind, taps))
