"""The settings and the results of a matrix, as files hold them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from firesteel.config import HIDDEN, hide_in_text, hide_secrets, is_secret
from firesteel.device import find_device
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.bench.result import BenchResult
from firesteel.lab.compare.samples import average_by_run
from firesteel.lab.path.slots import SlotTable
from firesteel.lab.verdict import Verdict, conclude
from firesteel.surroundings import PACKAGE, find_commit

DONE, CRASHED, TOO_LONG, NOT_MEASURED = "done", "crashed", "too long", "not measured"
CONFIGURATION = "configuration"  # the gate whose values are names of configurations
NOT_JUDGED = "measured by an earlier version, which did not judge its kernel path"
FIGURES = {"tg_tok_s": "tok/s", "pp_tok_s": "tok/s", "ttft_ms": "ms", "peak_memory_gb": "GB", "startup_s": "s"}
RANKED_BY = "tg_tok_s"
LOWER_IS_BETTER = ("ttft_ms", "peak_memory_gb", "startup_s")
SMALL = BenchPlan(pp=(128,), tg=(32,), depths=(0,), concurrency=(1,), cached_depths=(), runs=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A named set of what a server is started with; its name is a value of the gate `configuration`."""

    name: str
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    expect: str = ""  # as --expect
    path: str = ""  # as --path

    def as_dict(self) -> dict[str, Any]:
        """Returns the contents with secret values hidden."""
        shown = {"flags": hide_secrets(self.flags), "environment": hide_variables(self.environment)}
        return {**asdict(self), **shown}


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    gates: Mapping[str, tuple[str, ...]]  # gate -> its values
    configurations: tuple[Configuration, ...] = ()  # those that the gate `configuration` names
    engine: str = "firesteel"
    model: str = "kindling"
    flags: tuple[str, ...] = ()  # of every cell
    environment: Mapping[str, str] = field(default_factory=dict)  # of every cell, beside this process's own
    plan: BenchPlan = SMALL
    level: str = "2,4"  # of the lab run that a cell is
    quick: bool = True  # of its level 2
    path: str = ""  # of cells whose configuration has none, as is `expect`
    expect: str = ""
    reference: str = ""  # of level 2, as is `reference_url`
    reference_url: str = ""
    formats: str = ""  # that the servers hold, for shares of the roofline; as --formats
    keep_going: bool = False  # True: measure cells whose kernel path failed
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
        configurations = [configuration.as_dict() for configuration in self.configurations]
        return {
            **asdict(self),
            "gates": gates,
            "configurations": configurations,
            "engine": engine,
            "flags": flags,
            "environment": hide_variables(self.environment),
            "reference_url": hide_in_text(self.reference_url),
        }


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
    """The result of a cell, which is a lab run. A cell without a rank is shown, but never best."""

    status: str  # NOT_MEASURED: its kernel path failed, so the benchmark was left out
    gates: dict[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()  # of its server, secrets hidden
    environment: dict[str, str] = field(default_factory=dict)  # that it set, secrets hidden
    verdict: Verdict = Verdict.UNPROVEN  # on its run
    slots: SlotTable | None = None  # of its kernel path
    unranked: str = NOT_JUDGED  # why it has no rank; empty if it has one
    rank: int | None = None  # from 1, by RANKED_BY
    folder: str = ""  # of its run with report.html, relative to the folder of the matrix's result
    figures: dict[str, float] = field(default_factory=dict)
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)  # of figures, a value per run
    reason: str = ""  # of a verdict that is not passed
    seconds: float = 0.0
    commit: str | None = None
    device: str | None = None
    bench: BenchResult | None = None

    @classmethod
    def failed(cls, status: str, reason: str) -> CellOutcome:
        """Returns the outcome of a cell without a result."""
        return cls(status=status, verdict=Verdict.FAILED, reason=reason, unranked=reason)

    @property
    def origin(self) -> Origin:
        return Origin(self.commit, self.device)

    @property
    def configuration(self) -> str:
        """The name of its configuration; empty if the matrix has none."""
        return self.gates.get(CONFIGURATION, "")

    def as_dict(self) -> dict[str, Any]:
        bench = {} if self.bench is None else {"bench": self.bench.as_dict()}
        return {
            "gates": self.gates,
            "flags": list(self.flags),
            "environment": self.environment,
            "seconds": self.seconds,
            "status": self.status,
            "verdict": self.verdict.value,
            "slots": None if self.slots is None else self.slots.as_dict(),
            "unranked": self.unranked,
            "rank": self.rank,
            "folder": self.folder,
            "figures": self.figures,
            "samples": {name: list(values) for name, values in self.samples.items()},
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

    @property
    def verdict(self) -> Verdict:
        """The verdict on the whole matrix: every cell must have been measured and proven."""
        return conclude((cell.verdict for cell in self.cells), needs_all=True)

    def find_best(self, figure: str) -> float | None:
        """Returns the best value among cells that have a rank."""
        values = [cell.figures[figure] for cell in self.cells if not cell.unranked and figure in cell.figures]
        choose = min if figure in LOWER_IS_BETTER else max
        return choose(values, default=None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "gates": {name: list(values) for name, values in self.gates.items()},
            "figures": self.figures,
            "cells": [cell.as_dict() for cell in self.cells],
            "matrix": None if self.matrix is None else self.matrix.as_dict(),
            "words": self.words,
            "all_done": self.all_done,
            "verdict": self.verdict.value,
        }


def summarise(matrix: Matrix, outcomes: Sequence[CellOutcome], origin: Origin | None = None) -> MatrixResult:
    """Builds the result. `origin` is that of cells measured now; the summary names cells of another origin."""
    done = sum(cell.status == DONE for cell in outcomes)
    mixed = list_other_origins(outcomes, origin) if origin else []
    num_unranked = sum(bool(cell.unranked) for cell in outcomes)
    without_rank = f", {num_unranked} without a rank" if num_unranked else ""
    return MatrixResult(
        gates=matrix.gates,
        figures={name: unit for name, unit in FIGURES.items() if any(name in cell.figures for cell in outcomes)},
        cells=tuple(replace(cell, bench=None, samples=sample_runs(cell.bench)) for cell in rank(outcomes)),
        matrix=matrix,
        words="; ".join([f"{done} of {len(outcomes)} cells done{without_rank}", *mixed]),
        all_done=done == len(outcomes),
    )


def sample_runs(bench: BenchResult | None) -> dict[str, tuple[float, ...]]:
    """Returns the runs of the first workload, which show the noise of a cell's figures."""
    if bench is None or not bench.rows:
        return {}
    first = bench.rows[0]
    return {name: tuple(average_by_run(first, name)) for name in FIGURES if name in first.series}


def rank(outcomes: Sequence[CellOutcome]) -> list[CellOutcome]:
    """Returns the cells with their ranks, by the speed of decoding; equal cells share a rank."""
    speeds = [None if cell.unranked else cell.figures.get(RANKED_BY) for cell in outcomes]
    return [
        replace(
            cell, rank=None if speed is None else 1 + sum(other > speed for other in speeds if other is not None)
        )
        for cell, speed in zip(outcomes, speeds, strict=True)
    ]


def hide_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns variables as they may be shown: values of secret ones, and secrets in others, hidden."""
    return {
        name: HIDDEN if value and is_secret(name) else hide_secrets((value,))[0]
        for name, value in environment.items()
    }


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
