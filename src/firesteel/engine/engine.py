"""The engine: takes requests and returns tokens, one step at a time.

engine.submit(request)
while engine.has_work:
    for output in engine.step(): ...
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from firesteel.config import BatchConfig, CacheConfig, KernelConfig, SpeculateConfig
from firesteel.device import DeviceSpec
from firesteel.engine.cache.kv_cache import (
    count_pages,
    count_prompt_logits,
    find_dtype,
    find_layout,
    new_cache,
    page_bytes,
)
from firesteel.engine.cache.page_pool import PagePool
from firesteel.engine.cache.page_tables import PageTables
from firesteel.engine.collected import collect
from firesteel.engine.expert_scales import Fp8Experts, count_fp8_experts
from firesteel.engine.limits import find_ahead, find_budget, find_most_requests
from firesteel.engine.memory_guard import MemoryGuard
from firesteel.engine.sample.sampler import Sampler
from firesteel.engine.sample.spans import PendingSpans, join_drafts, make_rows
from firesteel.engine.schedule.scheduler import Scheduler
from firesteel.engine.schedule.step_cost import StepCostModel
from firesteel.engine.speculate.build import build_speculator, find_needs
from firesteel.engine.speculate.draft_store import DraftStore
from firesteel.engine.speculate.policy import StepTime
from firesteel.engine.statistics import Statistics
from firesteel.engine.step.batch import build_batch, lay_out
from firesteel.engine.step.decode_loop import UNOBSERVED, DecodeLoop, StepObserver, StepsInFlight, keep_rows
from firesteel.engine.step.prompt_store import ReadyPrompt
from firesteel.engine.step.runner import Runner
from firesteel.engine.step.step_store import FusedOps
from firesteel.engine.step.stores import StepStores
from firesteel.engine.step.unread import UnreadSteps
from firesteel.model.decode import MOST_REQUESTS as MOST_FUSED
from firesteel.model.drafters.drafter import Drafter
from firesteel.model.gpt_oss import GptOss
from firesteel.types import Plan, Request, RequestStatistics, SpanResult, StepOutput

_log = logging.getLogger(__name__)
MASK_POLL_S = 0.0005
MANY_AHEAD_STEPS = 1  # with many requests: a step takes the GPU longer than the host, and who joins waits for each


class Engine:
    """Scheduler, cache, model and sampler of one device."""

    def __init__(
        self,
        model: GptOss,
        device: DeviceSpec,
        config: BatchConfig,
        cache: CacheConfig,
        *,
        max_context: int,
        reserve_gib: float = 0.0,
        kernels: KernelConfig | None = None,
        fused: FusedOps | None = None,
        speculate: SpeculateConfig | None = None,
        drafter: Drafter | None = None,
        run_ahead_steps: int | None = None,
        eager_prompt_steps: bool = False,
        eager_draft_steps: bool = False,
    ) -> None:
        """Allocates the cache: free memory except `reserve_gib`, unless its size is configured.

        `fused` ops compute decoding steps of few requests. `run_ahead_steps` follows the settings unless given.
        With `eager_prompt_steps`, prompts run in padded steps even if those are not captured, with
        `eager_draft_steps` draft networks. On unified memory, requests that would leave the host less than
        `reserve_gib` are refused. `speculate` says whether to draft, by `drafter` if that is a network.
        """
        config = replace(
            config,
            max_num_batched_tokens=find_budget(config, device),
            max_num_seqs=find_most_requests(config, device),
        )
        spec, size, dtype = model.spec, config.page_size, find_dtype(cache.kv_dtype, device)
        speculate = speculate or SpeculateConfig()
        needs = find_needs(speculate, drafter, model, device, config)  # before free memory is divided into pages
        num_pages = count_pages(
            spec,
            device,
            config,
            cache,
            max_context=max_context,
            most_rows=needs.most_rows,
            reserve_gib=reserve_gib,
            drafter_bytes=needs.page_bytes,
            draft_sizes=needs.sizes,
        )
        self.config = config
        self.device = device
        self.pool = PagePool(num_pages)
        tables = PageTables(self.pool, find_layout(spec, size), prefix_caching=cache.prefix_caching)
        self.cost = StepCostModel(config.max_decode_delay_ms, config.max_num_batched_tokens)
        is_bounded = device.is_cuda and config.max_decode_delay_ms > 0
        self.scheduler = Scheduler(
            tables,
            config,
            max_context=max_context,
            max_prompt_logits=count_prompt_logits(spec),
            find_room=self.cost.find_room if is_bounded else None,
        )
        kernels = kernels or KernelConfig()
        prompt_model = model.with_activation(kernels.prefill_activation)
        self.runner = Runner(prompt_model, new_cache(spec, num_pages + 1, size, device, dtype))
        by_row = model.kernels.is_invariant
        self.sampler = Sampler(spec.vocab_size, device.torch_device, model.kernels.draw, by_row=by_row)
        self.idle_page = num_pages  # owned by no request
        stores = StepStores.new(
            model,
            self.runner,
            device,
            kernels,
            config,
            fused=fused,
            idle_page=num_pages,
            max_context=max_context,
            most_rows=needs.most_rows,
            eager_prompts=eager_prompt_steps,
            taps=needs.taps,
        )
        self.prompts = stores.prompts
        self.loop = DecodeLoop(stores.decoding, self.sampler)
        self.clock: Callable[[], float] = time.perf_counter
        self.run_ahead_steps = find_ahead(config, device) if run_ahead_steps is None else run_ahead_steps
        self.in_flight = StepsInFlight()
        self.guard = MemoryGuard(spec, device, config, reserve_gib) if device.is_unified else None
        bytes_per_page = page_bytes(spec, size, dtype) + needs.page_bytes
        experts = count_fp8_experts(prompt_model) if prompt_model.widens_to_e4m3 else Fp8Experts()
        self.totals = Statistics(
            pages=num_pages,
            cache_bytes=num_pages * bytes_per_page,
            experts_in_fp8=experts.in_fp8,
            experts_in_bf16=experts.in_bf16,
        )
        self.drafts = None
        if drafter is not None and needs.sizes is not None:
            drafter.attach(num_pages + 1, size, device.torch_device)
            self.drafts = DraftStore(drafter, stores.decoding, needs.sizes, eager=eager_draft_steps)
        self.speculator = build_speculator(speculate, self.drafts, self.scheduler, stores.decoding, self.totals)
        if self.speculator is not None:
            self.scheduler.draft_with(self.speculator.find_drafts, stores.decoding.most_requests)
        self._unread = UnreadSteps()
        self._last_end: float | None = None  # of the step before, if requests have been served since

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.jobs)

    def submit(self, request: Request) -> None:
        """Queues a request; raises RequestError if it could never run, HostMemoryLow if memory is short now."""
        request.check_vocabulary(self.sampler.vocab_size)
        if self.guard is not None:
            self.guard.check(request)
        self.scheduler.add(request)

    def cancel(self, request_id: str, *, finished: bool = False) -> RequestStatistics | None:
        """Ends a request without further output; returns its statistics, or None if there is no such request.

        `finished` counts it as finished rather than cancelled: the reader found the end, for example a stop string.
        """
        statistics = self.scheduler.cancel(request_id)
        if self.speculator is not None:
            self.speculator.drop(request_id)
        if statistics is not None and finished:
            self.totals.count_finished(statistics)
        elif statistics is not None:
            self.totals.requests_cancelled += 1
        return statistics

    @torch.inference_mode()
    def step(self, observer: StepObserver = UNOBSERVED) -> list[StepOutput]:
        """Returns the outputs of the oldest step in flight, after launching steps ahead of it."""
        self.device.use()
        if self.speculator is not None:
            self.speculator.policy.start()
        self._last_end = self._last_end if self._last_end is not None else self.clock()
        outputs = self._step(observer)
        self._last_end = self.clock() if self.has_work else None
        return outputs

    def _step(self, observer: StepObserver) -> list[StepOutput]:
        self._launch_ahead(observer)
        self.in_flight.drop_unwanted(self.scheduler.is_wanted)
        begun: float | None = None  # when the step was launched, if that is now
        if not self.in_flight.launched:
            with self.totals.timed("schedule"):
                plan = self.scheduler.next()
            if not plan.spans:
                time.sleep(MASK_POLL_S)  # all requests wait for their masks
                return []
            observer.on_plan(plan)
            if not self.loop.takes(plan):
                return self._compute(plan, observer)
            begun = self._begin(plan, observer)
            self._launch_ahead(observer)
        return self._land(begun)

    def _compute(self, plan: Plan, observer: StepObserver) -> list[StepOutput]:
        """Computes any plan, in a captured step of its padded size or op by op.

        The decoding step after it is launched before its tokens are read.
        """
        ready = self.prompts.find(plan)
        start = self.clock()
        logits = self._run(plan) if ready is None else self._replay(plan, ready)
        pending = PendingSpans.begin(self.sampler, plan, logits)
        if pending.token_ids is not None and all(span.samples for span in plan.spans) and not self._waits(plan):
            self._decode_after(plan, pending.token_ids, observer)
        with self.totals.timed("wait"):
            results = pending.read()
            if not pending.waits:
                self._unread.add(logits)
        if pending.waits and self._unread.clear():  # else it also took what earlier steps did
            self.cost.add(plan.num_tokens, 1e3 * (self.clock() - start))
        return self._commit(plan, results)

    def _run(self, plan: Plan) -> Tensor:
        """Launches a plan op by op; returns logits."""
        with self.totals.timed("build"):
            batch = build_batch(plan, self.config.page_size, self.device.torch_device)
        with self.totals.timed("run"):
            return self.runner.run(batch, self.prompts.memory.find_taps(plan.num_tokens))

    def _replay(self, plan: Plan, ready: ReadyPrompt) -> Tensor:
        """Launches a plan in a step whose inputs stay on the device; returns logits."""
        with self.totals.timed("build"):
            ready.step.load(lay_out(plan, self.config.page_size))
        with self.totals.timed("run"):
            return ready.launch()[: sum(span.num_logits for span in plan.spans)]

    def _begin(self, plan: Plan, observer: StepObserver) -> float:
        """Launches a decoding plan, whose following steps need no input from the host; returns when."""
        with self.totals.timed("build"):
            self.loop.begin(plan)
        begun = self.clock()
        self._launch(plan, observer)
        return begun

    def _decode_after(self, plan: Plan, token_ids: Tensor, observer: StepObserver) -> None:
        """Launches the decoding step that follows `plan`, whose tokens [R] are on the device, if there is one.

        Not with many requests: their step is long, and a request that arrives now would wait for it.
        """
        if not self._depth(plan) or len(plan.spans) > MOST_FUSED:
            return
        with self.totals.timed("schedule"):
            following = self.scheduler.plan_ahead(plan)
        if following is None:
            return
        observer.on_plan(following)
        with self.totals.timed("build"):
            self.loop.begin(following, keep_rows(plan, following, token_ids))
        self._launch(following, observer)

    def _launch(self, plan: Plan, observer: StepObserver) -> None:
        with self.totals.timed("run"):
            rows = chain.from_iterable(map(make_rows, plan.spans))
            self.in_flight.add(plan, self.loop.launch(plan, rows, observer))

    def _launch_ahead(self, observer: StepObserver) -> None:
        """Launches further steps as long as their inputs are on the device."""
        in_flight = self.in_flight
        while (last := in_flight.last) is not None:
            if self._waits(last):
                in_flight.close()
                return
            if len(in_flight.launched) > self._depth(last):
                return
            with self.totals.timed("schedule"):
                plan = self.scheduler.plan_ahead(last)
            if plan is None or len(plan.spans) < len(last.spans) > MOST_FUSED:
                in_flight.close()  # of many requests one has left: another may join before the next step
                return
            observer.on_plan(plan)
            with self.totals.timed("build"):
                self.loop.follow(last, plan)
            self._launch(plan, observer)

    def _depth(self, plan: Plan) -> int:
        """Returns how many steps may be launched after a step whose tokens were not read yet."""
        if any(span.request.needs_tokens for span in plan.spans):
            return 0
        return min(self.run_ahead_steps, MANY_AHEAD_STEPS) if len(plan.spans) > MOST_FUSED else self.run_ahead_steps

    def _waits(self, plan: Plan) -> bool:
        """Returns whether the step after `plan` may verify drafts, or its tokens are drafted from."""
        return self.speculator is not None and self.speculator.waits(plan)

    def _land(self, begun: float | None) -> list[StepOutput]:
        plan, pending = self.in_flight.launched.popleft()
        with self.totals.timed("wait"):
            drawn = iter(pending.read())
            results = [join_drafts(span, drawn) for span in plan.spans]
        outputs = self._commit(plan, results)
        if self.speculator is not None:
            assert self._last_end is not None
            time = StepTime(
                ms=1e3 * (self.clock() - self._last_end),
                before_ms=0.0 if begun is None else 1e3 * (begun - self._last_end),
                is_steady=begun is None or not self._depth(plan),
            )
            self.speculator.count(plan, results, time)
        return outputs

    def _commit(self, plan: Plan, results: Sequence[SpanResult]) -> list[StepOutput]:
        if self.speculator is not None:
            self.speculator.expect(plan)
        with self.totals.timed("schedule"):
            outputs = self.scheduler.commit(plan, results)
        if self.speculator is not None:
            remaining = iter(results)
            of_spans = [next(remaining) if span.num_logits else None for span in plan.spans]
            taps = self.prompts.memory.find_taps(plan.num_tokens)
            self.speculator.follow(plan, of_spans, None if taps is None else taps.rows)
        self._count(plan, outputs)
        return outputs

    def count_late(self, kernel: str) -> None:
        """Counts a kernel that had to be compiled or read from disk while requests were served."""
        self.totals.late_compilations += 1
        _log.warning("%s was compiled, or read from disk, while requests were served", kernel)

    def statistics(self) -> Statistics:
        """Returns a copy of the statistics; reading the number of saturated values waits for the device."""
        return collect(
            self.totals,
            scheduler=self.scheduler,
            cache=self.runner.cache,
            decoding=self.loop.store,
            prompts=self.prompts,
            drafts=self.drafts,
            room=self.cost.find_room(1) if self.scheduler.find_room is not None else 0,
        )

    def _count(self, plan: Plan, outputs: Sequence[StepOutput]) -> None:
        self.totals.count_step(plan)
        for output in outputs:
            if output.statistics is not None:
                self.totals.count_finished(output.statistics)
                if self.speculator is not None:
                    self.speculator.drop(output.request_id)
