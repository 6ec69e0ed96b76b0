"""One measured configuration: its figures, what its kernel path was, and whether it counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from firesteel.config import shown_environment
from firesteel.lab.bench.headline import find_headline, list_depths
from firesteel.lab.bench.public_models import find_public_name
from firesteel.lab.bench.result import BenchResult, BenchRow
from firesteel.lab.bench.speculation import DraftAcceptance
from firesteel.lab.codec import to_json
from firesteel.lab.compare.interval import mean_interval
from firesteel.lab.compare.samples import average_by_run
from firesteel.lab.level import BENCHMARK, CORRECTNESS
from firesteel.lab.level_result import LevelResult
from firesteel.lab.levels.coherence import COHERENCE
from firesteel.lab.path.slots import SlotTable
from firesteel.lab.rerun import PLACES
from firesteel.lab.result import LabResult
from firesteel.lab.servers.commands import KINDS
from firesteel.lab.standing import Standing, judge_standing
from firesteel.lab.verdict import Verdict, conclude

FIGURES = ("pp_tok_s", "tg_tok_s", "ttft_ms", "tpot_ms")
RANKED_BY = "tg_tok_s"
OTHER = "other"  # kind of an engine without rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A figure with the interval of its mean over runs; without one if there were too few."""

    unit: str
    value: float  # median
    low: float | None = None
    high: float | None = None
    runs: int = 0

    @classmethod
    def of(cls, row: BenchRow, figure: str) -> Measured:
        series, runs = row.series[figure], average_by_run(row, figure)
        low, high = mean_interval(runs) or (None, None)
        return cls(unit=series.unit, value=series.median, low=low, high=high, runs=len(runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardEntry:
    path: str
    report: str = ""  # absolute path of its page; empty if there is none
    engine: str = ""
    model: str = ""
    device: str = ""
    settings: tuple[str, ...] = ()  # command or address unless the engine says it, and flags; secrets hidden
    environment: Mapping[str, str] = field(default_factory=dict)  # secrets hidden
    time_utc: str | None = None
    verdict: Verdict = Verdict.UNPROVEN  # passed: it is ranked
    fault: str = ""  # why it is not ranked
    slots: SlotTable | None = None
    coherent: Verdict | None = None  # None: not asked for
    workload: str = ""  # the headline's; empty if nothing was measured
    headline: Mapping[str, Measured] = field(default_factory=dict)  # by FIGURES
    # (figure, prompt tokens, answer tokens, depth) of one stream
    figures: Mapping[tuple[str, int, int, int], Measured] = field(default_factory=dict)
    by_depth: Mapping[int, Measured] = field(default_factory=dict)  # speed of the headline's answers
    share: float | None = None  # of the roofline, of the headline's answers
    speculation: DraftAcceptance | None = None
    doubts: tuple[str, ...] = ()

    @property
    def is_ranked(self) -> bool:
        return self.verdict is Verdict.PASSED

    @property
    def speed(self) -> float:
        return self.headline[RANKED_BY].value

    @property
    def name(self) -> str:
        """The engine with its settings, as it is told from others of the same section."""
        return " ".join([self.engine, *self.settings])

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "engine": self.engine,
            "model": self.model,
            "device": self.device,
            "settings": list(self.settings),
            "environment": dict(self.environment),
            "time_utc": self.time_utc,
            "verdict": self.verdict.value,
            "fault": self.fault,
            "slots": {} if self.slots is None else {row.slot: row.as_dict() for row in self.slots.rows},
            "coherent": None if self.coherent is None else self.coherent.value,
            "workload": self.workload,
            "headline": to_json(self.headline),
            "by_depth": {str(depth): to_json(figure) for depth, figure in self.by_depth.items()},
            "share": self.share,
            "speculation": None if self.speculation is None else self.speculation.as_dict(),
            "doubts": list(self.doubts),
        }


def make_entry(path: str, result: LabResult) -> BoardEntry | None:
    """Returns None if the result is not of a run, or measured nothing and has no fault that explains it."""
    bench = result.any_bench
    if result.matrix is not None or result.review is not None or (bench is None and not result.levels):
        return None
    standing = judge_run(result)
    if bench is None and all(level.level != BENCHMARK for level in result.levels):
        return None
    spec, around = result.spec, result.surroundings
    model = (result.engine.model if result.engine else "") or (spec.model if spec else "") or ""
    return BoardEntry(
        path=path,
        engine=name_engine(result),
        model=find_public_name(model) or model or "unknown model",
        device=find_device_name(result),
        settings=list_settings(result),
        environment=find_variables(result),
        time_utc=result.time_utc or (around.time_utc if around else None),
        verdict=standing.verdict,
        fault=standing.fault,
        slots=result.any_slots,
        coherent=judge_coherence(result.levels),
        doubts=(*filter(None, [standing.doubt]), *(bench.doubts if bench else ())),
        **({} if bench is None else take_figures(bench)),
    )


def take_figures(bench: BenchResult) -> dict[str, Any]:
    """Returns the fields of an entry that its benchmark decides."""
    headline = find_headline(bench)
    if headline is None:
        return {"speculation": bench.speculation}
    share = headline.shares.get(RANKED_BY)
    depths = list_depths(bench, headline)
    return {
        "workload": headline.workload.name,
        "headline": {name: Measured.of(headline, name) for name in FIGURES if name in headline.series},
        "figures": dict(list_figures(bench)),
        "by_depth": {depth: Measured.of(row, RANKED_BY) for depth, row in depths.items()},
        "share": None if share is None else share.share,
        "speculation": bench.speculation,
    }


def list_figures(bench: BenchResult) -> Iterable[tuple[tuple[str, int, int, int], Measured]]:
    for row in bench.rows:
        workload = row.workload
        if workload.concurrency == 1 and not workload.is_cached:
            for name in FIGURES:
                if name in row.series:
                    yield (name, workload.pp, workload.tg, workload.depth), Measured.of(row, name)


def judge_run(result: LabResult) -> Standing:
    standing = judge_standing(result.levels)
    if standing.verdict is Verdict.PASSED and (result.any_bench is None or not find_headline(result.any_bench)):
        return Standing(Verdict.UNPROVEN, "no speed of one stream was measured")
    return standing


def judge_coherence(levels: Sequence[LevelResult]) -> Verdict | None:
    """Returns the verdict on the answers; None if nothing looked at them."""
    checks = [check.verdict for level in levels for check in level.checks if check.check == COHERENCE]
    answers = [level.verdict for level in levels if level.level == CORRECTNESS]
    return conclude([*checks, *answers], needs_all=False) if checks or answers else None


def name_engine(result: LabResult) -> str:
    """Returns the engine with version and commit, as far as they are known."""
    named = "" if result.spec is None else result.spec.shown_url or result.spec.shown_engine
    return result.release if result.release not in ("", OTHER) else named or "unknown engine"


def list_settings(result: LabResult) -> tuple[str, ...]:
    """Returns what the server was started with; a command line or an address stands before the flags."""
    if result.spec is None:
        return ()
    content = result.spec.as_dict()
    start = content["url"] or content["engine"]
    return (*([] if start in (*KINDS, name_engine(result)) else [start]), *content["flags"])


def find_variables(result: LabResult) -> Mapping[str, str]:
    """Returns the server's variables, without those that only name places of its machine."""
    engine, around = result.engine, result.surroundings
    known = (engine.environment if engine else None) or (around.environment if around else None) or {}
    return {name: value for name, value in shown_environment(known).items() if not PLACES.search(name)}


def find_device_name(result: LabResult) -> str:
    bench, around = result.any_bench, result.surroundings
    return (bench.roof.device if bench and bench.roof else "") or (around.device if around else "") or "unknown GPU"
