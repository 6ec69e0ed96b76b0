"""Measures a server by llama-benchy's definitions and keeps every sample."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from firesteel.lab.bench.plan import BenchPlan, BenchWorkload
from firesteel.lab.bench.result import CONTEXT, FOLLOW_UP, PROMPT, BenchResult, BenchRow, RequestSample
from firesteel.lab.bench.roof import Roof, RoofShare, ServedModel, decode_share, prompt_share
from firesteel.lab.bench.series import Series
from firesteel.lab.bench.speculation import compute_speculation, read_metrics
from firesteel.lab.bench.speeds import doubt_latency, summarise
from firesteel.lab.client.api import Api
from firesteel.lab.client.exchange import Exchange
from firesteel.lab.client.load_client import ChatMessage, LoadClient
from firesteel.lab.client.prompts import Prompter, calibrate, user
from firesteel.lab.client.wire import LOST, RequestFailed
from firesteel.lab.memory.usage import UsageSampler

BenchProgress = Callable[[int, int, str], None]  # workloads done, workloads in all, name of the next
Batches = list[list[Exchange]]


class BenchBroken(RequestFailed):
    """The server hangs or is gone; `result` holds the workloads measured before."""

    def __init__(self, kind: str, words: str, result: BenchResult) -> None:
        super().__init__(kind, words)
        self.result = result


def measure(
    url: str,
    model: str = "",
    plan: BenchPlan | None = None,
    *,
    api_key: str = "",
    timeout_s: float = 600.0,
    served: ServedModel | None = None,
    roof: Roof | None = None,
    pid: int | None = None,
    startup_s: float | None = None,
    progress: BenchProgress | None = None,
) -> BenchResult:
    """Measures all workloads of a plan, in order.

    `timeout_s` limits the silence of an answer, `served` and `roof` give figures their bytes and shares, and `pid`
    (the server's) adds its CPU and memory. Requests that are refused or answered wrongly become failures of their
    rows; a server that cannot be reached raises RequestFailed, one that is lost later BenchBroken.
    """
    with ExitStack() as stack:
        sampler = None if pid is None else stack.enter_context(UsageSampler(pid))
        meter = Meter(plan=plan or BenchPlan(), served=served, roof=roof, progress=progress or (lambda *_: None))
        api, start, broken = Api.of(url, api_key), time.perf_counter(), None
        metrics = read_metrics(api)
        try:
            result = asyncio.run(meter.measure(LoadClient(url, model=model, api_key=api_key, timeout_s=timeout_s)))
        except BenchBroken as error:
            result, broken = error.result, error
    usage = None if sampler is None else sampler.usage()
    result = dataclasses.replace(result, seconds=time.perf_counter() - start, startup_s=startup_s, usage=usage)
    if broken is not None:
        raise BenchBroken(broken.kind, str(broken), result) from broken
    return dataclasses.replace(result, speculation=compute_speculation(metrics, read_metrics(api)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    plan: BenchPlan
    served: ServedModel | None
    roof: Roof | None
    progress: BenchProgress

    async def measure(self, client: LoadClient) -> BenchResult:
        async with client:
            _, max_context = await client.find_model()
            prompter = await calibrate(client, self.plan.seed)
            _raise_if_lost([await client.open_stream()])
            latency_s = await client.latency_s()
            workloads, left_out = self.plan.within(max_context)
            result = BenchResult(
                url=client.url,
                model=client.model,
                plan=self.plan,
                roof=self.roof,
                latency_s=latency_s,
                tokens_a_word=prompter.tokens_per_word,
                max_context=max_context,
                left_out=left_out,
            )
            for number, workload in enumerate(workloads):
                self.progress(number, len(workloads), workload.name)
                try:
                    result.rows.extend(await self._measure_workload(client, prompter, workload, latency_s))
                except RequestFailed as lost:
                    raise self._break_off(result, workloads[number:], lost) from lost
            self.progress(len(workloads), len(workloads), "")
            result.left_out.extend(list_shortened(result.rows, self.plan))
            return result

    def _break_off(self, result: BenchResult, rest: Sequence[BenchWorkload], lost: RequestFailed) -> BenchBroken:
        first = rest[0].name
        shortened = list_shortened(result.rows, self.plan)
        result.left_out.extend([*shortened, f"{len(rest)} workloads, {first} and those after it: {lost}"])
        return BenchBroken(lost.kind, f"{first}: {lost}", result)

    async def _measure_workload(
        self, client: LoadClient, prompter: Prompter, workload: BenchWorkload, latency_s: float
    ) -> list[BenchRow]:
        phases: dict[str, Batches] = {}
        start, counted = time.perf_counter(), -self.plan.warmups
        while not self.plan.is_enough(counted, time.perf_counter() - start):
            prompts = [prompter.make(workload.pp, workload.depth) for _ in range(workload.concurrency)]
            for phase, phase_prompts in self._phases(prompts, workload).items():
                batch = await asyncio.gather(*(self._ask(client, prompt, workload) for prompt in phase_prompts))
                _raise_if_lost(batch)
                if counted >= 0:
                    phases.setdefault(phase, []).append(batch)
            counted += 1
        return [self._row(workload, phase, batches, latency_s) for phase, batches in phases.items()]

    def _phases(
        self, prompts: list[list[ChatMessage]], workload: BenchWorkload
    ) -> dict[str, list[list[ChatMessage]]]:
        if not workload.is_cached:
            return {PROMPT: prompts}
        return {CONTEXT: [[context, user(".")] for context, _ in prompts], FOLLOW_UP: prompts}

    async def _ask(self, client: LoadClient, prompt: Sequence[ChatMessage], workload: BenchWorkload) -> Exchange:
        exact = {"min_tokens": workload.tg, "ignore_eos": True} if self.plan.exact_tg else {}
        cache = {} if workload.is_cached else {"cache_prompt": False}
        sampling: dict[str, Any] = {} if self.plan.temperature is None else {"temperature": self.plan.temperature}
        return await client.stream(prompt, max_tokens=workload.tg, **exact, **cache, **sampling)

    def _row(self, workload: BenchWorkload, phase: str, batches: Batches, latency_s: float) -> BenchRow:
        expected = {PROMPT: workload.depth + workload.pp, CONTEXT: workload.depth, FOLLOW_UP: workload.pp}[phase]
        series = summarise(batches, expected=expected, latency_s=latency_s)
        return BenchRow(
            workload=workload,
            phase=phase,
            series=series,
            shares=self._shares(workload, phase, series),
            failures=tuple(exchange.error for batch in batches for exchange in batch if exchange.error),
            doubts=tuple(filter(None, [doubt_latency(batches, latency_s)])),
            batches=tuple(tuple(map(RequestSample.of, batch)) for batch in batches),
        )

    def _shares(self, workload: BenchWorkload, phase: str, series: dict[str, Series]) -> dict[str, RoofShare]:
        if self.served is None or self.roof is None:
            return {}
        met = dataclasses.replace(workload, pp=workload.depth, depth=0) if phase == CONTEXT else workload
        shares = {}
        if "pp_tok_s" in series:
            speed = series["pp_tok_s"].median
            shares["pp_tok_s"] = prompt_share(self.served, met, self.roof, speed, is_cached=phase == FOLLOW_UP)
        if "tg_tok_s" in series:
            shares["tg_tok_s"] = decode_share(self.served, met, self.roof, series["tg_tok_s"].median)
        return shares


def _raise_if_lost(batch: Sequence[Exchange]) -> None:
    for exchange in batch:
        if exchange.error_kind in LOST:
            raise RequestFailed(exchange.error_kind, exchange.error, exchange.status)


def list_shortened(rows: Sequence[BenchRow], plan: BenchPlan) -> list[str]:
    """Returns a line for each workload that ran fewer times than planned."""
    if plan.enough_s is None:
        return []
    return [
        f"{row.name}: {len(row.batches)} runs instead of {plan.runs}, because they took over {plan.enough_s:.0f} s"
        for row in rows
        if len(row.batches) < plan.runs
    ]
