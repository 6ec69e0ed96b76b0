"""The workloads of a benchmark: prompt and answer lengths, depths, concurrency and repeats."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, replace
from typing import Any

from firesteel.errors import UserError

MIN_RUNS = 3  # fewer runs show no spread
MAX_TEMPERATURE = 2.0  # what every server accepts
HEADLINE_PP, HEADLINE_TG = 2048, 32  # tokens of the workload that engines are compared by


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchWorkload:
    """Concurrent streams, each with a prompt after a context, and an answer."""

    pp: int  # tokens of the prompt
    tg: int  # tokens of the answer
    depth: int = 0  # tokens of the context before the prompt
    concurrency: int = 1
    is_cached: bool = False  # the context is sent alone first, so that the prompt finds it in the cache

    @property
    def name(self) -> str:
        """The name in llama-benchy's notation."""
        depth = f" @ d{self.depth}" if self.depth else ""
        streams = f" (c{self.concurrency})" if self.concurrency > 1 else ""
        return f"pp{self.pp} tg{self.tg}{depth}{streams}"

    @property
    def tokens(self) -> int:
        return self.depth + self.pp + self.tg


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """Every prompt and answer length at every depth with one stream; then more streams; then cached contexts.

    Prompts are followed by answers of the last length. Other answer lengths follow the headline's prompt or, if it
    is not measured, the first; several streams and cached contexts use prompts of the first length.
    """

    pp: tuple[int, ...] = (512, 2048, 8192)
    tg: tuple[int, ...] = (32, 128)
    depths: tuple[int, ...] = (0, 4096, 8192, 16384, 32768)
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    runs: int = 5  # counted runs per workload
    warmups: int = 1  # uncounted runs before them
    enough_s: float | None = 60.0  # a workload that took this long stops after MIN_RUNS runs; None: never
    cached_depths: tuple[int, ...] = (8192,)  # depths measured again with the context in the cache
    exact_tg: bool = True  # answers continue to their full length, whatever the model would do
    seed: int = 0
    temperature: float | None = None  # of sampling; None: the server's default

    def __post_init__(self) -> None:
        for name, least in (("pp", 1), ("tg", 1), ("depths", 0), ("concurrency", 1)):
            values = getattr(self, name)
            if not values or min(values) < least:
                raise UserError(f"{name} = {values}: must be numbers of at least {least}")
        if min(self.cached_depths, default=1) < 1:
            raise UserError(f"cached_depths = {self.cached_depths}: must be numbers of at least 1")
        if self.runs < 1 or self.warmups < 0:
            raise UserError(f"runs = {self.runs}, warmups = {self.warmups}: must be at least 1 and 0")
        if self.temperature is not None and not 0 <= self.temperature <= MAX_TEMPERATURE:
            raise UserError(f"temperature = {self.temperature}: must be from 0 to {MAX_TEMPERATURE:g}")

    @classmethod
    def quick(cls) -> BenchPlan:
        return cls(pp=(128, 512), tg=(32,), depths=(0, 1024), concurrency=(1, 4), cached_depths=(1024,))

    def with_settings(self, **settings: Any) -> BenchPlan:
        """Returns the plan with the settings that are not None or empty.

        Given depths limit those with a cached context; a given number of runs is not cut short.
        """
        given = {name: value for name, value in settings.items() if value is not None and value != ()}
        cached = [depth for depth in self.cached_depths if depth in given.get("depths", self.cached_depths)]
        enough_s = None if "runs" in given else self.enough_s
        return replace(self, cached_depths=tuple(cached), enough_s=enough_s, **given)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def in_words(self) -> str:
        sizes = {
            "prompts of": self.pp,
            "answers of": self.tg,
            "depths": self.depths,
            "concurrency": self.concurrency,
        }
        return ", ".join(f"{what} {' and '.join(map(str, values))}" for what, values in sizes.items())

    def workloads(self) -> list[BenchWorkload]:
        headline = HEADLINE_PP if HEADLINE_PP in self.pp else self.pp[0]
        lengths = [*((headline, tg) for tg in self.tg[:-1]), *((pp, self.tg[-1]) for pp in self.pp)]
        single = [
            BenchWorkload(pp=pp, tg=tg, depth=depth, concurrency=self.concurrency[0])
            for depth, (pp, tg) in itertools.product(self.depths, lengths)
        ]
        first = BenchWorkload(pp=self.pp[0], tg=self.tg[-1], depth=self.depths[0])
        concurrent = [replace(first, concurrency=streams) for streams in self.concurrency[1:]]
        cached = [replace(first, depth=depth, is_cached=True) for depth in self.cached_depths]
        return single + concurrent + cached

    def is_enough(self, counted: int, seconds: float) -> bool:
        is_slow = self.enough_s is not None and seconds > self.enough_s
        return counted >= self.runs or (counted >= MIN_RUNS and is_slow)

    def within(self, max_context: int | None) -> tuple[list[BenchWorkload], list[str]]:
        """Returns the workloads that fit into a model's context, and a line for each that does not."""
        workloads = self.workloads()
        if max_context is None:
            return workloads, []
        fitting = [workload for workload in workloads if workload.tokens <= max_context]
        left_out = [
            f"{workload.name}: {workload.tokens} tokens exceed the model's context of {max_context}"
            for workload in workloads
            if workload.tokens > max_context
        ]
        return fitting, left_out
