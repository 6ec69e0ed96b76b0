"""What a benchmark asks of a server: prompt and answer lengths, depths, crowds, repeats; asks nothing itself."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, replace
from typing import Any

from firesteel.errors import UserError

LEAST_RUNS = 3  # that still show a spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One cell: so many streams at once, each with a prompt behind a context, and an answer."""

    pp: int  # tokens of the prompt
    tg: int  # tokens of the answer
    depth: int = 0  # tokens of the context before the prompt
    concurrency: int = 1
    is_cached: bool = False  # the context is sent first, by itself, and the prompt finds it in the cache

    @property
    def name(self) -> str:
        """As llama-benchy writes it."""
        depth = f" @ d{self.depth}" if self.depth else ""
        crowd = f" (c{self.concurrency})" if self.concurrency > 1 else ""
        return f"pp{self.pp} tg{self.tg}{depth}{crowd}"

    @property
    def tokens(self) -> int:
        return self.depth + self.pp + self.tg


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """Every prompt and answer length at every depth, one stream at a time; then crowds, then cached contexts.

    Prompts are followed by answers of the last length; other answers, crowds and cached contexts follow prompts of
    the first.
    """

    pp: tuple[int, ...] = (512, 2048, 8192)
    tg: tuple[int, ...] = (32, 128)
    depths: tuple[int, ...] = (0, 4096, 8192, 16384, 32768)
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    runs: int = 5  # counted
    warmups: int = 1  # before them, not counted
    enough_s: float = 60.0  # a workload that has taken this long is not run more than LEAST_RUNS times
    cached_depths: tuple[int, ...] = (8192,)  # measured once more, with the context in the cache
    exact_tg: bool = True  # the answer goes on to its length, whatever the model would do
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("pp", 1), ("tg", 1), ("depths", 0), ("concurrency", 1)):
            values = getattr(self, name)
            if not values or min(values) < least:
                raise UserError(f"{name} = {values}: wants numbers of at least {least}")
        if min(self.cached_depths, default=1) < 1:
            raise UserError(f"cached_depths = {self.cached_depths}: wants numbers of at least 1")
        if self.runs < 1 or self.warmups < 0:
            raise UserError(f"runs = {self.runs}, warmups = {self.warmups}: at least 1 and 0")

    @classmethod
    def quick(cls) -> BenchPlan:
        return cls(pp=(128, 512), tg=(32,), depths=(0, 1024), concurrency=(1, 4), cached_depths=(1024,))

    @classmethod
    def parse(cls, content: dict[str, Any]) -> BenchPlan:
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
        }
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def workloads(self) -> list[Workload]:
        lengths = [*((self.pp[0], tg) for tg in self.tg[:-1]), *((pp, self.tg[-1]) for pp in self.pp)]
        alone = [
            Workload(pp=pp, tg=tg, depth=depth, concurrency=self.concurrency[0])
            for depth, (pp, tg) in itertools.product(self.depths, lengths)
        ]
        first = Workload(pp=self.pp[0], tg=self.tg[-1], depth=self.depths[0])
        cached = [replace(first, depth=depth, is_cached=True) for depth in self.cached_depths]
        return alone + [replace(first, concurrency=crowd) for crowd in self.concurrency[1:]] + cached

    def is_enough(self, counted: int, seconds: float) -> bool:
        return counted >= self.runs or (counted >= LEAST_RUNS and seconds > self.enough_s)

    def within(self, max_context: int | None) -> tuple[list[Workload], list[str]]:
        """Workloads that a model has room for, and in words what had to be left out."""
        all_of_them = self.workloads()
        if max_context is None:
            return all_of_them, []
        fitting = [one for one in all_of_them if one.tokens <= max_context]
        left_out = [
            f"{one.name}: {one.tokens} tokens, and the model has room for {max_context}"
            for one in all_of_them
            if one.tokens > max_context
        ]
        return fitting, left_out
