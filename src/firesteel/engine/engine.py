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

import torch
from torch import Tensor

from firesteel.config import BatchConfig, CacheConfig, KernelConfig
from firesteel.device import GIB, DeviceSpec
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
from firesteel.engine.memory_guard import MemoryGuard
from firesteel.engine.sample.sampler import Sampler
from firesteel.engine.sample.spans import PendingSpans, make_row
from firesteel.engine.schedule.scheduler import Scheduler
from firesteel.engine.schedule.step_cost import StepCostModel
from firesteel.engine.statistics import Statistics
from firesteel.engine.step.batch import build_batch, lay_out
from firesteel.engine.step.decode_loop import UNOBSERVED, DecodeLoop, StepObserver, StepsInFlight, keep_rows
from firesteel.engine.step.prompt_store import PromptStore, ReadyPrompt
from firesteel.engine.step.runner import Runner
from firesteel.engine.step.step_store import FusedOps, StepStore
from firesteel.model.decode import MOST_REQUESTS as MOST_FUSED
from firesteel.model.gpt_oss import GptOss
from firesteel.model.graphs import StepMemory
from firesteel.types import Plan, Request, RequestStatistics, SpanResult, StepOutput

MANY_TOKENS, FEW_TOKENS = 8192, 2048  # default tokens per step
REQUESTS_BY_BYTES = ((100 * GIB, 256), (40 * GIB, 128))  # (least GPU memory, most requests at a time)
FEW_REQUESTS = 64
LARGE_GPU_BYTES = 40 * GIB
_log = logging.getLogger(__name__)
MASK_POLL_S = 0.0005
RUN_AHEAD_STEPS = 3  # launched before the tokens of the step ahead of them are read
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
        run_ahead_steps: int | None = None,
        eager_prompt_steps: bool = False,
    ) -> None:
        """Allocates the cache: free memory except `reserve_gib`, unless its size is configured.

        `fused` ops compute decoding steps of few requests. `run_ahead_steps` follows the settings unless given.
        With `eager_prompt_steps`, prompts run in padded steps even if those are not captured. On unified memory,
        requests that would leave the host less than `reserve_gib` are refused.
        """
        config = replace(
            config,
            max_num_batched_tokens=find_budget(config, device),
            max_num_seqs=find_most_requests(config, device),
        )
        spec, size, dtype = model.spec, config.page_size, find_dtype(cache.kv_dtype, device)
        num_pages = count_pages(spec, device, config, cache, max_context=max_context, reserve_gib=reserve_gib)
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
        sizes = {"most_requests": config.max_num_seqs, "max_context": max_context}
        memory = StepMemory(device, most_requests=config.max_num_seqs, vocab_size=spec.vocab_size)
        store = StepStore(
            model, self.runner.cache, device, kernels, fused=fused, idle_page=num_pages, memory=memory, **sizes
        )
        self.prompts = PromptStore(
            prompt_model,
            self.runner.cache,
            device,
            kernels,
            memory,
            most_tokens=config.max_num_batched_tokens,
            eager=eager_prompt_steps,
            **sizes,
        )
        self.loop = DecodeLoop(store, self.sampler)
        self.clock: Callable[[], float] = time.perf_counter
        self.run_ahead_steps = find_ahead(config, device) if run_ahead_steps is None else run_ahead_steps
        self.in_flight = StepsInFlight()
        self.guard = MemoryGuard(spec, device, config, reserve_gib) if device.is_unified else None
        self.totals = Statistics(pages=num_pages, cache_bytes=num_pages * page_bytes(spec, size, dtype))

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
        if statistics is not None and finished:
            self.totals.count_finished(statistics)
        elif statistics is not None:
            self.totals.requests_cancelled += 1
        return statistics

    @torch.inference_mode()
    def step(self, observer: StepObserver = UNOBSERVED) -> list[StepOutput]:
        """Returns the outputs of the oldest step in flight, after launching steps ahead of it."""
        self.device.use()
        self._launch_ahead(observer)
        self.in_flight.drop_unwanted(self.scheduler.is_wanted)
        if not self.in_flight.launched:
            with self.totals.timed("schedule"):
                plan = self.scheduler.next()
            if not plan.spans:
                time.sleep(MASK_POLL_S)  # all requests wait for their masks
                return []
            observer.on_plan(plan)
            if not self.loop.takes(plan):
                return self._compute(plan, observer)
            self._begin(plan, observer)
            self._launch_ahead(observer)
        return self._land()

    def _compute(self, plan: Plan, observer: StepObserver) -> list[StepOutput]:
        """Computes any plan, in a captured step of its padded size or op by op.

        The decoding step after it is launched before its tokens are read.
        """
        ready = self.prompts.find(plan)
        start = self.clock()
        logits = self._run(plan) if ready is None else self._replay(plan, ready)
        pending = PendingSpans.begin(self.sampler, plan, logits)
        if pending.token_ids is not None and all(span.samples for span in plan.spans):
            self._decode_after(plan, pending.token_ids, observer)
        with self.totals.timed("wait"):
            results = pending.read()
        self.cost.add(plan.num_tokens, 1e3 * (self.clock() - start))
        return self._commit(plan, results)

    def _run(self, plan: Plan) -> Tensor:
        """Launches a plan op by op."""
        with self.totals.timed("build"):
            batch = build_batch(plan, self.config.page_size, self.device.torch_device)
        with self.totals.timed("run"):
            return self.runner.run(batch)

    def _replay(self, plan: Plan, ready: ReadyPrompt) -> Tensor:
        """Launches a plan in a step whose inputs stay on the device."""
        with self.totals.timed("build"):
            ready.step.load(lay_out(plan, self.config.page_size))
        with self.totals.timed("run"):
            return ready.launch()[: sum(span.num_logits for span in plan.spans)]

    def _begin(self, plan: Plan, observer: StepObserver) -> None:
        """Launches a decoding plan, whose following steps need no input from the host."""
        with self.totals.timed("build"):
            self.loop.begin(plan)
        self._launch(plan, observer)

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
            self.in_flight.add(plan, self.loop.launch(plan, map(make_row, plan.spans), observer))

    def _launch_ahead(self, observer: StepObserver) -> None:
        """Launches further steps as long as their inputs are on the device."""
        in_flight = self.in_flight
        while (last := in_flight.last) is not None and len(in_flight.launched) <= self._depth(last):
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

    def _land(self) -> list[StepOutput]:
        plan, pending = self.in_flight.launched.popleft()
        with self.totals.timed("wait"):
            results = pending.read()
        return self._commit(plan, results)

    def _commit(self, plan: Plan, results: Sequence[SpanResult]) -> list[StepOutput]:
        with self.totals.timed("schedule"):
            outputs = self.scheduler.commit(plan, results)
        self._count(plan, outputs)
        return outputs

    def count_late(self, kernel: str) -> None:
        """Counts a kernel that had to be compiled or read from disk while requests were served."""
        self.totals.late_compilations += 1
        _log.warning("%s was compiled, or read from disk, while requests were served", kernel)

    def statistics(self) -> Statistics:
        """Returns a copy of the statistics; reading the number of saturated values waits for the device."""
        saturated = self.runner.cache.saturated
        return replace(
            self.totals,
            requests_running=len(self.scheduler.running),
            requests_waiting=len(self.scheduler.waiting),
            preemptions=self.scheduler.num_preemptions,
            pages_held=self.pool.num_held,
            pages_idle=self.pool.num_idle,
            page_evictions=self.pool.num_evictions,
            saturated_values=0 if saturated is None else int(saturated),
            graphs=len(self.loop.store.ready()),
            graph_s=self.loop.store.seconds,
            graph_bytes=self.loop.store.num_bytes,
            prompt_graphs=len(self.prompts),
            prompt_graph_s=self.prompts.seconds,
            prompt_graph_bytes=self.prompts.num_bytes,
            prompt_steps_replayed=self.prompts.num_launched,
            prompt_steps_too_many_tokens=self.prompts.outside.tokens,
            prompt_steps_with_prompt_logits=self.prompts.outside.logits,
            prompt_steps_without_graphs=self.prompts.outside.off,
            prompt_tokens_beside_decoding=self.cost.find_room(1) if self.scheduler.find_room is not None else 0,
            late_captures=self.loop.store.num_late + self.prompts.num_late,
        )

    def _count(self, plan: Plan, outputs: Sequence[StepOutput]) -> None:
        self.totals.count_step(plan)
        for output in outputs:
            if output.statistics is not None:
                self.totals.count_finished(output.statistics)


def find_budget(config: BatchConfig, device: DeviceSpec) -> int:
    """Returns the most tokens per step. With few tokens, reading the experts takes most of the time."""
    is_large = device.is_cuda and device.memory_bytes >= LARGE_GPU_BYTES
    return config.max_num_batched_tokens or (MANY_TOKENS if is_large else FEW_TOKENS)


def find_most_requests(config: BatchConfig, device: DeviceSpec) -> int:
    """Returns the most requests decoded together; half of unified memory is left to the host."""
    if config.max_num_seqs:
        return config.max_num_seqs
    memory = device.memory_bytes // 2 if device.is_unified else device.memory_bytes
    return next((most for least, most in REQUESTS_BY_BYTES if device.is_cuda and memory >= least), FEW_REQUESTS)


def find_ahead(config: BatchConfig, device: DeviceSpec) -> int:
    """Returns the number of steps to launch ahead: 0 on a CPU, which computes as it launches."""
    return RUN_AHEAD_STEPS if config.run_ahead and device.is_cuda else 0
