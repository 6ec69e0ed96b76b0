"""Statistics of an engine with the current counts of its parts."""

from __future__ import annotations

from dataclasses import replace

from firesteel.engine.schedule.scheduler import Scheduler
from firesteel.engine.speculate.draft_store import DraftStore
from firesteel.engine.statistics import Statistics
from firesteel.engine.step.prompt_store import PromptStore
from firesteel.engine.step.step_store import StepStore
from firesteel.types import KvCache


def collect(
    totals: Statistics,
    *,
    scheduler: Scheduler,
    cache: KvCache,
    decoding: StepStore,
    prompts: PromptStore,
    drafts: DraftStore | None,
    room: int,
) -> Statistics:
    """Returns a copy of `totals` with what the parts count.

    `room` is the number of prompt tokens that fit beside a decoding request, 0 without a limit. Reading the number
    of saturated values waits for the device.
    """
    pool, outside = scheduler.tables.pool, prompts.outside
    drafting = [] if drafts is None else [drafts]
    return replace(
        totals,
        accepted_at=list(totals.accepted_at),
        requests_running=len(scheduler.running),
        requests_waiting=len(scheduler.waiting),
        preemptions=scheduler.num_preemptions,
        pages_held=pool.num_held,
        pages_idle=pool.num_idle,
        page_evictions=pool.num_evictions,
        saturated_values=0 if cache.saturated is None else int(cache.saturated),
        graphs=len(decoding.ready()),
        graph_s=decoding.seconds,
        graph_bytes=decoding.num_bytes,
        prompt_graphs=len(prompts),
        prompt_graph_s=prompts.seconds,
        prompt_graph_bytes=prompts.num_bytes,
        prompt_steps_replayed=prompts.num_launched,
        prompt_steps_too_many_tokens=outside.tokens,
        prompt_steps_with_prompt_logits=outside.logits,
        prompt_steps_without_graphs=outside.off,
        prompt_tokens_beside_decoding=room,
        late_captures=sum(store.num_late for store in (decoding, prompts, *drafting)),
        draft_graphs=sum(map(len, drafting)),
        draft_graph_s=sum(store.seconds for store in drafting),
        draft_graph_bytes=sum(store.num_bytes for store in drafting),
        draft_steps_replayed=sum(store.num_launched for store in drafting),
        draft_steps_of_prompts=sum(store.num_stored_outside for store in drafting),
        draft_steps_without_graphs=sum(store.num_off for store in drafting),
    )
