"""Measures a server by llama-benchy's definitions and keeps every sample; knows servers by their URL only."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from firesteel.lab.bench.plan import BenchPlan, Workload
from firesteel.lab.bench.roof import Roof, Served, Share, decode_share, prompt_share
from firesteel.lab.bench.series import Series
from firesteel.lab.bench.speeds import summarise
from firesteel.lab.client.exchange import Exchange
from firesteel.lab.client.load_client import Client, Message
from firesteel.lab.client.prompts import Prompter, calibrate, user
from firesteel.lab.client.wire import LOST, RequestFailed
from firesteel.lab.memory.usage import Usage, Watch

SCHEMA = 1
PROMPT, CONTEXT, FOLLOW_UP = "prompt", "context", "prompt behind a cached context"
Progress = Callable[[int, int, str], None]  # done, all, what is next
Batches = list[list[Exchange]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One workload, or one of its two phases where the context is cached first."""

    workload: Workload
    phase: str
    series: dict[str, Series]
    shares: dict[str, Share]  # of pp_tok_s and tg_tok_s
    failures: tuple[str, ...]
    batches: Batches

    @property
    def name(self) -> str:
        return self.workload.name if self.phase == PROMPT else f"{self.workload.name}, {self.phase}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "workload": dataclasses.asdict(self.workload), "phase": self.phase,
            "series": {name: one.as_dict() for name, one in self.series.items()},
            "shares": {name: one.as_dict() for name, one in self.shares.items()},
            "failures": list(self.failures),
            "batches": [[_raw(one) for one in batch] for batch in self.batches],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    url: str
    model: str
    plan: BenchPlan
    roof: Roof | None
    latency_s: float  # of the connection, taken off a prompt's time
    tokens_a_word: float
    max_context: int | None
    left_out: list[str]  # in words: workloads that the model has no room for, and runs there was no time for
    startup_s: float | None
    seconds: float
    usage: Usage | None
    rows: list[BenchRow] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        return [f"{row.name}: {failure}" for row in self.rows for failure in row.failures]

    def as_dict(self) -> dict[str, Any]:
        """Raw samples included: of each request, times since its start."""
        return {
            "schema": SCHEMA, "url": self.url, "model": self.model, "plan": self.plan.as_dict(),
            "roof": None if self.roof is None else dataclasses.asdict(self.roof), "latency_s": self.latency_s,
            "tokens_a_word": self.tokens_a_word, "max_context": self.max_context, "left_out": self.left_out,
            "startup_s": self.startup_s, "seconds": self.seconds,
            "usage": None if self.usage is None else self.usage.as_dict(),
            "rows": [row.as_dict() for row in self.rows],
        }  # fmt: skip


class BenchBroken(RequestFailed):
    """A server that hangs or is gone; `result` holds the workloads before."""

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
    served: Served | None = None,
    roof: Roof | None = None,
    pid: int | None = None,
    startup_s: float | None = None,
    progress: Progress | None = None,
) -> BenchResult:
    """All workloads of a plan, in order.

    `timeout_s` bounds the silence of an answer, `served` and `roof` give figures their bytes and shares, `pid` (the
    server's) its CPU and memory. Requests that are refused or answered wrongly are failures of their rows; a
    server that cannot be asked raises RequestFailed, one that is lost later BenchBroken.
    """
    with ExitStack() as stack:
        watch = None if pid is None else stack.enter_context(Watch(pid))
        meter = Meter(plan=plan or BenchPlan(), served=served, roof=roof, progress=progress or (lambda *_: None))
        start, broken = time.perf_counter(), None
        try:
            found = asyncio.run(meter.measure(Client(url, model=model, api_key=api_key, timeout_s=timeout_s)))
        except BenchBroken as error:
            found, broken = error.result, error
    found = dataclasses.replace(
        found, seconds=time.perf_counter() - start, startup_s=startup_s,
        usage=None if watch is None else watch.usage(),
    )  # fmt: skip
    if broken is not None:
        raise BenchBroken(broken.kind, str(broken), found) from broken
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    plan: BenchPlan
    served: Served | None
    roof: Roof | None
    progress: Progress

    async def measure(self, client: Client) -> BenchResult:
        async with client:
            _, max_context = await client.find_model()
            prompter = await calibrate(client, self.plan.seed)
            _raise_if_lost([await client.open_stream()])
            latency_s = await client.latency_s()
            workloads, left_out = self.plan.within(max_context)
            result = BenchResult(
                url=client.url, model=client.model, plan=self.plan, roof=self.roof, latency_s=latency_s,
                tokens_a_word=prompter.tokens_a_word, max_context=max_context, startup_s=None,
                left_out=left_out, seconds=0.0, usage=None,
            )  # fmt: skip
            for number, workload in enumerate(workloads):
                self.progress(number, len(workloads), workload.name)
                try:
                    result.rows.extend(await self._rows(client, prompter, workload, latency_s))
                except RequestFailed as lost:
                    raise self._break_off(result, workloads[number:], lost) from lost
            self.progress(len(workloads), len(workloads), "")
            result.left_out.extend(find_shortened(result.rows, self.plan))
            return result

    def _break_off(self, result: BenchResult, rest: Sequence[Workload], lost: RequestFailed) -> BenchBroken:
        first = rest[0].name
        shortened = find_shortened(result.rows, self.plan)
        result.left_out.extend([*shortened, f"{len(rest)} workloads, {first} and those after it: {lost}"])
        return BenchBroken(lost.kind, f"{first}: {lost}", result)

    async def _rows(
        self, client: Client, prompter: Prompter, workload: Workload, latency_s: float
    ) -> list[BenchRow]:
        phases: dict[str, Batches] = {}
        start, counted = time.perf_counter(), -self.plan.warmups
        while not self.plan.is_enough(counted, time.perf_counter() - start):
            crowd = [prompter.make(workload.pp, workload.depth) for _ in range(workload.concurrency)]
            for phase, prompts in self._phases(crowd, workload).items():
                batch = await asyncio.gather(*(self._ask(client, one, workload) for one in prompts))
                _raise_if_lost(batch)
                if counted >= 0:
                    phases.setdefault(phase, []).append(batch)
            counted += 1
        return [self._row(workload, phase, batches, latency_s) for phase, batches in phases.items()]

    def _phases(self, crowd: list[list[Message]], workload: Workload) -> dict[str, list[list[Message]]]:
        if not workload.is_cached:
            return {PROMPT: crowd}
        return {CONTEXT: [[context, user(".")] for context, _ in crowd], FOLLOW_UP: crowd}

    async def _ask(self, client: Client, prompt: Sequence[Message], workload: Workload) -> Exchange:
        exact = {"min_tokens": workload.tg, "ignore_eos": True} if self.plan.exact_tg else {}
        cache = {} if workload.is_cached else {"cache_prompt": False}
        return await client.stream(prompt, max_tokens=workload.tg, **exact, **cache)

    def _row(self, workload: Workload, phase: str, batches: Batches, latency_s: float) -> BenchRow:
        expected = {PROMPT: workload.depth + workload.pp, CONTEXT: workload.depth, FOLLOW_UP: workload.pp}[phase]
        series = summarise(batches, expected=expected, latency_s=latency_s)
        failures = tuple(one.error for batch in batches for one in batch if one.error)
        return BenchRow(
            workload=workload, phase=phase, series=series, shares=self._shares(workload, phase, series),
            failures=failures, batches=batches,
        )  # fmt: skip

    def _shares(self, workload: Workload, phase: str, series: dict[str, Series]) -> dict[str, Share]:
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
    for one in batch:
        if one.error_kind in LOST:
            raise RequestFailed(one.error_kind, one.error, one.status)


def find_shortened(rows: Sequence[BenchRow], plan: BenchPlan) -> list[str]:
    return [
        f"{row.name}: {len(row.batches)} runs instead of {plan.runs}, which took more than {plan.enough_s:.0f} s"
        for row in rows
        if len(row.batches) < plan.runs
    ]


def _raw(exchange: Exchange) -> dict[str, Any]:
    """Without its texts; times since its start."""
    start = exchange.start_s
    content = dataclasses.asdict(exchange)
    for name in ("content", "reasoning", "end_s", "first_response_s", "first_token_s", "chunk_times_s"):
        del content[name]
    content["token_times_s"] = [round(time - start, 6) for time in exchange.token_times_s]
    return {**content, "ttfr_s": exchange.ttfr_s, "ttft_s": exchange.ttft_s, "e2e_s": exchange.e2e_s}
