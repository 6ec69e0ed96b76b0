"""The engine: requests in, tokens out, one step at a time; knows tokens, not text, and no process or thread.

engine.submit(request)
while engine.has_work:
    for output in engine.step(): ...
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
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
from firesteel.engine.preparation import prepare
from firesteel.engine.sample.logprobs import Logprobs, score
from firesteel.engine.sample.sampler import Drawn, Sampler, SampleRow
from firesteel.engine.schedule.scheduler import Scheduler
from firesteel.engine.schedule.step_cost import StepCost
from firesteel.engine.statistics import Statistics
from firesteel.engine.step.batch import build_batch, lay_out
from firesteel.engine.step.decode_loop import DecodeLoop
from firesteel.engine.step.flight import Flight
from firesteel.engine.step.prompt_store import PromptStore, ReadyPrompt
from firesteel.engine.step.runner import Runner
from firesteel.engine.step.step_store import FusedOps, StepStore
from firesteel.engine.transfer import upload_ints
from firesteel.model.gpt_oss import GptOss
from firesteel.model.graphs import StepMemory
from firesteel.types import Outcome, Plan, Request, RequestStatistics, Span, StepOutput

MANY_TOKENS, FEW_TOKENS = 8192, 2048  # of a step, where nothing is configured
REQUESTS_BY_BYTES = ((100 * GIB, 256), (40 * GIB, 128))  # memory of a GPU from which on, most requests at a time
FEW_REQUESTS = 64
LARGE_GPU_BYTES = 40 * GIB
_log = logging.getLogger(__name__)
RUN_AHEAD_STEPS = 3  # launched before the tokens of the step ahead of them are read


class Engine:
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
        """The cache takes free memory but for `reserve_gib`, unless its size is configured.

        `fused` ops compute decoding steps of few requests. `run_ahead_steps` is the settings' choice unless given.
        `eager_prompt_steps` has prompts run in padded steps where they are not captured, too.
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
        self.cost = StepCost(config.max_decode_delay_ms, config.max_num_batched_tokens)
        is_bounded = device.is_cuda and config.max_decode_delay_ms > 0
        self.scheduler = Scheduler(
            tables, config, max_context=max_context, max_prompt_logits=count_prompt_logits(spec),
            find_room=self.cost.find_room if is_bounded else None,
        )  # fmt: skip
        self.runner = Runner(model, new_cache(spec, num_pages + 1, size, device, dtype))
        self.sampler = Sampler(spec.vocab_size, device.torch_device, model.kernels.draw)
        self.idle_page = num_pages  # is nobody's
        kernels = kernels or KernelConfig()
        sizes = {"most_requests": config.max_num_seqs, "max_context": max_context}
        memory = StepMemory(device, most_requests=config.max_num_seqs, vocab_size=spec.vocab_size)
        store = StepStore(
            model, self.runner.cache, device, kernels, fused=fused, idle_page=num_pages, memory=memory, **sizes
        )
        self.prompts = PromptStore(
            model, self.runner.cache, device, kernels, memory, most_tokens=config.max_num_batched_tokens,
            eager=eager_prompt_steps, **sizes,
        )  # fmt: skip
        self.loop = DecodeLoop(store, self.sampler)
        self.clock: Callable[[], float] = time.perf_counter
        self.run_ahead_steps = find_ahead(config, device) if run_ahead_steps is None else run_ahead_steps
        self.flight = Flight()
        self.totals = Statistics(pages=num_pages, cache_bytes=num_pages * page_bytes(spec, size, dtype))

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.jobs)

    def submit(self, request: Request) -> None:
        """Raises RequestError where the request could never run."""
        request.check_vocabulary(self.sampler.vocab_size)
        self.scheduler.add(request)

    def cancel(self, request_id: str, *, finished: bool = False) -> RequestStatistics | None:
        """No output follows; None where there is no such request any more.

        `finished` says that the reader found the end by itself, as at a stop string.
        """
        found = self.scheduler.cancel(request_id)
        if found is not None and finished:
            self.totals.count_finished(found)
        elif found is not None:
            self.totals.requests_cancelled += 1
        return found

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        """What the oldest step gave of those that are launched: one, or as many as run ahead."""
        self.device.use()
        self._launch_ahead()
        self.flight.drop_unwanted(self.scheduler.is_wanted)
        if not self.flight.launched:
            with self.totals.timed("schedule"):
                plan = self.scheduler.next()
            if not plan.spans:
                return []
            if not self.loop.takes(plan):
                return self._compute(plan)
            self._begin(plan)
            self._launch_ahead()
        return self._land()

    def _compute(self, plan: Plan) -> list[StepOutput]:
        """Any plan, in a step of its padded size or launched op by op."""
        ready = self.prompts.find(plan)
        start = self.clock()
        logits = self._run(plan) if ready is None else self._replay(plan, ready)
        with self.totals.timed("wait"):
            outcomes = self._sample(plan, logits)
        self.cost.add(plan.num_tokens, 1e3 * (self.clock() - start))
        return self._commit(plan, outcomes)

    def _run(self, plan: Plan) -> Tensor:
        """Op by op."""
        with self.totals.timed("build"):
            batch = build_batch(plan, self.config.page_size, self.device.torch_device)
        with self.totals.timed("run"):
            return self.runner.run(batch)

    def _replay(self, plan: Plan, ready: ReadyPrompt) -> Tensor:
        """In a step whose inputs stay."""
        with self.totals.timed("build"):
            ready.step.load(lay_out(plan, self.config.page_size))
        with self.totals.timed("run"):
            return ready.launch()[: sum(span.num_logits for span in plan.spans)]

    def _begin(self, plan: Plan) -> None:
        """A plan of decoding only, whose steps may go on without the host."""
        with self.totals.timed("build"):
            self.loop.begin(plan)
        self._launch(plan)

    def _launch(self, plan: Plan) -> None:
        with self.totals.timed("run"):
            self.flight.add(plan, self.loop.launch(plan, map(_sample_row, plan.spans)))

    def _launch_ahead(self) -> None:
        """Steps that need nothing of those before them but what lies on the device."""
        while (last := self.flight.last) is not None and len(self.flight.launched) <= self._depth(last):
            with self.totals.timed("schedule"):
                plan = self.scheduler.go_on(last)
            if plan is None or not self.loop.has_room(plan):
                self.flight.close()
            else:
                self._launch(plan)

    def _depth(self, plan: Plan) -> int:
        """Steps that may be launched beyond one whose tokens are not read."""
        return 0 if any(span.request.needs_tokens for span in plan.spans) else self.run_ahead_steps

    def _land(self) -> list[StepOutput]:
        plan, fetched = self.flight.launched.popleft()
        with self.totals.timed("wait"):
            drawn = fetched.read()
        return self._commit(plan, [_outcome_of(one) for one in drawn])

    def _commit(self, plan: Plan, outcomes: Sequence[Outcome]) -> list[StepOutput]:
        with self.totals.timed("schedule"):
            outputs = self.scheduler.commit(plan, outcomes)
        self._count(plan, outputs)
        return outputs

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Makes all kernels and steps that requests will need; `progress` is called with how many of how many."""
        prepare(self, progress)

    def count_late(self, kernel: str) -> None:
        """Takes note of a kernel that was not there when a request needed it."""
        self.totals.late_compilations += 1
        _log.warning("%s was compiled, or read from disk, while requests were served", kernel)

    def statistics(self) -> Statistics:
        """A copy; reading the number of saturated values waits for the device."""
        saturated = self.runner.cache.saturated
        return replace(
            self.totals, requests_running=len(self.scheduler.running), requests_waiting=len(self.scheduler.waiting),
            preemptions=self.scheduler.num_preemptions, pages_held=self.pool.num_held,
            pages_idle=self.pool.num_idle, page_evictions=self.pool.num_evictions,
            saturated_values=0 if saturated is None else int(saturated), graphs=len(self.loop.store.ready()),
            graph_s=self.loop.store.seconds, graph_bytes=self.loop.store.num_bytes,
            prompt_graphs=len(self.prompts), prompt_graph_s=self.prompts.seconds,
            prompt_graph_bytes=self.prompts.num_bytes, prompt_steps_replayed=self.prompts.num_launched,
            prompt_steps_too_many_tokens=self.prompts.outside.tokens,
            prompt_steps_with_prompt_logits=self.prompts.outside.logits,
            prompt_steps_without_graphs=self.prompts.outside.off,
            prompt_tokens_beside_decoding=self.cost.find_room(1) if self.scheduler.find_room is not None else 0,
            late_captures=self.loop.store.num_late + self.prompts.num_late,
        )  # fmt: skip

    def _count(self, plan: Plan, outputs: Sequence[StepOutput]) -> None:
        self.totals.count_step(plan)
        for output in outputs:
            if output.statistics is not None:
                self.totals.count_finished(output.statistics)

    def _sample(self, plan: Plan, logits: Tensor) -> list[Outcome]:
        """One for each span whose logits are wanted. Everything is launched before anything is waited for."""
        spans = [span for span in plan.spans if span.num_logits]
        pieces = logits.split([span.num_logits for span in spans]) if spans else ()
        drawing = [(span, piece) for span, piece in zip(spans, pieces, strict=True) if span.samples]
        sampled = None
        if drawing:
            last = logits if len(drawing) == len(logits) else torch.cat([piece[-1:] for _, piece in drawing])
            sampled = self.sampler.sample(last, [_sample_row(span) for span, _ in drawing])
        scored = [_score_prompt(span, piece) for span, piece in zip(spans, pieces, strict=True)]
        drawn = iter(sampled.read() if sampled is not None else ())
        return [_outcome(span, piece, one, drawn) for span, piece, one in zip(spans, pieces, scored, strict=True)]


def find_budget(config: BatchConfig, device: DeviceSpec) -> int:
    """Tokens of a step. With few of them each expert gets few, and the time goes into reading it."""
    is_large = device.is_cuda and device.memory_bytes >= LARGE_GPU_BYTES
    return config.max_num_batched_tokens or (MANY_TOKENS if is_large else FEW_TOKENS)


def find_most_requests(config: BatchConfig, device: DeviceSpec) -> int:
    """Returns how many requests are decoded together. A GPU shares unified memory with the host: half counts."""
    if config.max_num_seqs:
        return config.max_num_seqs
    memory = device.memory_bytes // 2 if device.is_unified else device.memory_bytes
    return next((most for least, most in REQUESTS_BY_BYTES if device.is_cuda and memory >= least), FEW_REQUESTS)


def find_ahead(config: BatchConfig, device: DeviceSpec) -> int:
    """Steps to launch ahead. A CPU computes when it launches: there is nothing to be ahead of."""
    return RUN_AHEAD_STEPS if config.run_ahead and device.is_cuda else 0


def _sample_row(span: Span) -> SampleRow:
    request = span.request
    allowed = request.mask.allowed(span.token_ids[request.num_prompt :]) if request.mask is not None else None
    return SampleRow(
        params=request.params, position=span.end, name=f"request {request.request_id}", token_ids=span.token_ids,
        num_prompt=request.num_prompt, stop_token_ids=request.stops, allowed=allowed,
    )  # fmt: skip


def _score_prompt(span: Span, logits: Tensor) -> Logprobs | None:
    """Of the prompt tokens that follow the rows of `logits`, where asked for; the prompt's last row has none."""
    request = span.request
    if request.params.prompt_logprobs is None:
        return None
    first = span.end - len(logits) + 1
    following = list(span.token_ids[first : min(span.end + 1, request.num_prompt)])
    if not following:
        return None
    return score(logits[: len(following)], upload_ints(following, logits.device), request.params.prompt_logprobs)


def _outcome_of(drawn: Drawn) -> Outcome:
    return Outcome(token_id=drawn.token_id, logprobs=drawn.logprobs, error=drawn.error, is_refused=drawn.is_refused)


def _outcome(span: Span, logits: Tensor, scored: Logprobs | None, drawn: Iterator[Drawn]) -> Outcome:
    token = next(drawn) if span.samples else Drawn(token_id=-1)
    num_top = span.request.params.prompt_logprobs or 0
    return Outcome(
        token_id=token.token_id if span.samples else None, logprobs=token.logprobs, error=token.error,
        is_refused=token.is_refused,
        prompt_logprobs=None if scored is None else scored.read([num_top] * len(scored.token_ids)),
        logits=logits if span.request.score else None,
    )  # fmt: skip
