"""The settings and the results of a matrix, as files hold them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from firesteel.config import hide_secrets
from firesteel.device import find_device
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.bench.result import BenchResult
from firesteel.surroundings import PACKAGE, find_commit

DONE, CRASHED, TOO_LONG = "done", "crashed", "too long"
FIGURES = {"tg_tok_s": "tok/s", "pp_tok_s": "tok/s", "ttft_ms": "ms", "peak_memory_gb": "GB", "startup_s": "s"}
LOWER_IS_BETTER = ("ttft_ms", "peak_memory_gb", "startup_s")
SMALL = BenchPlan(pp=(128,), tg=(32,), depths=(0,), concurrency=(1,), cached_depths=(), runs=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    gates: Mapping[str, tuple[str, ...]]  # gate -> its values
    engine: str = "firesteel"
    model: str = "kindling"
    flags: tuple[str, ...] = ()  # of every cell
    plan: BenchPlan = SMALL
    cell_s: float = 3600.0  # time limit of a cell
    debug: bool = False
    ready_s: float = 1800.0  # these three apply to a cell's server
    answer_s: float = 600.0
    grace_s: float = 45.0

    def cells(self) -> list[dict[str, str]]:
        return [dict(zip(self.gates, chosen, strict=True)) for chosen in itertools.product(*self.gates.values())]

    def as_dict(self) -> dict[str, Any]:
        """Returns the settings with secret values hidden."""
        engine, *flags = hide_secrets((self.engine, *self.flags))
        gates = {name: list(values) for name, values in self.gates.items()}
        return {**asdict(self), "gates": gates, "engine": engine, "flags": flags}


@dataclass(frozen=True, slots=True)
class Origin:
    """The source and the device that a cell was measured with."""

    commit: str | None
    device: str | None

    @classmethod
    def now(cls) -> Origin:
        commit, is_dirty = find_commit(PACKAGE)
        return cls(f"{commit} with changes" if is_dirty else commit, find_device().name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOutcome:
    status: str  # DONE, CRASHED or TOO_LONG
    gates: dict[str, str] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    reason: str = ""  # of a failure
    seconds: float = 0.0
    commit: str | None = None
    device: str | None = None
    bench: BenchResult | None = None

    @property
    def origin(self) -> Origin:
        return Origin(self.commit, self.device)

    def as_dict(self) -> dict[str, Any]:
        bench = {} if self.bench is None else {"bench": self.bench.as_dict()}
        return {
            "gates": self.gates,
            "seconds": self.seconds,
            "status": self.status,
            "figures": self.figures,
            "reason": self.reason,
            **bench,
            "commit": self.commit,
            "device": self.device,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixResult:
    gates: Mapping[str, tuple[str, ...]]
    cells: tuple[CellOutcome, ...]  # without their benchmarks, which are in the cells' files
    figures: dict[str, str] = field(default_factory=lambda: {"tg_tok_s": "tok/s"})  # figure -> unit
    matrix: Matrix | None = None
    words: str = ""
    all_done: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {
            "gates": {name: list(values) for name, values in self.gates.items()},
            "figures": self.figures,
            "cells": [cell.as_dict() for cell in self.cells],
            "matrix": None if self.matrix is None else self.matrix.as_dict(),
            "words": self.words,
            "all_done": self.all_done,
        }


def summarise(matrix: Matrix, outcomes: Sequence[CellOutcome], origin: Origin | None = None) -> MatrixResult:
    """Builds the result. `origin` is that of cells measured now; the summary names cells of another origin."""
    done = sum(cell.status == DONE for cell in outcomes)
    mixed = list_other_origins(outcomes, origin) if origin else []
    return MatrixResult(
        gates=matrix.gates,
        figures={name: unit for name, unit in FIGURES.items() if any(name in cell.figures for cell in outcomes)},
        cells=tuple(replace(cell, bench=None) for cell in outcomes),
        matrix=matrix,
        words="; ".join([f"{done} of {len(outcomes)} cells done", *mixed]),
        all_done=done == len(outcomes),
    )


def list_other_origins(outcomes: Sequence[CellOutcome], origin: Origin) -> list[str]:
    """Returns a line if cells were measured with another commit or on another device."""
    others = Counter(cell.origin for cell in outcomes)
    del others[origin]
    if not others:
        return []
    listed = ", ".join(
        f"{count} of them with commit {other.commit} on {other.device}" for other, count in others.items()
    )
    return [f"NOT ALL COMPARABLE: {listed}; this is commit {origin.commit} on {origin.device}"]
