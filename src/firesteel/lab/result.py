"""The result of a lab run, or of another verb of the lab: what result.json holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from firesteel.errors import UserError
from firesteel.lab.bench.result import BenchResult
from firesteel.lab.codec import from_json, to_json
from firesteel.lab.compare.compare import Comparison
from firesteel.lab.compare.past_run import PastRun
from firesteel.lab.engine_info import EngineInfo
from firesteel.lab.level import KERNEL_PATH, Level, find_level
from firesteel.lab.level_result import LevelResult, parse_level, parse_part
from firesteel.lab.matrix.result import MatrixResult
from firesteel.lab.matrix.review import Review
from firesteel.lab.path.ledger import OpCalls, VerifiedDrafts
from firesteel.lab.path.slots import SlotTable
from firesteel.lab.profile.profile import Profile, parse_profile
from firesteel.lab.servers.server_exit import ServerExit
from firesteel.lab.spec import LabSpec, parse_spec
from firesteel.lab.surroundings import StatedSurroundings
from firesteel.lab.verdict import Verdict, conclude

SCHEMA = 2  # 1 had `passed` and `was_run` instead of `verdict`
RESULT = "result.json"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTimeline:
    """Memory of the server over the whole run."""

    seconds: tuple[float, ...] = ()
    host_bytes: tuple[int, ...] = ()
    gpu_bytes: tuple[int | None, ...] = ()

    @classmethod
    def of(cls, samples: Iterable[tuple[float, int, int | None]]) -> MemoryTimeline:
        columns = list(zip(*samples, strict=True)) or [(), (), ()]
        return cls(seconds=tuple(round(at, 2) for at in columns[0]), host_bytes=columns[1], gpu_bytes=columns[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class LabResult:
    """The contents of result.json: levels and spec of a run, or the part of a matrix, a review or a profile."""

    levels: tuple[LevelResult, ...] = ()
    spec: LabSpec | None = None
    unknown_settings: tuple[str, ...] = ()  # in the file, but not in this version
    firesteel: str | None = None  # version
    seconds: float = 0.0
    time_utc: str | None = None
    unfinished: tuple[Level, ...] = ()  # levels that an interrupted run did not reach
    reductions: tuple[str, ...] = ()
    engine: EngineInfo | None = None
    kernels: tuple[OpCalls, ...] = ()
    shutdown: ServerExit | None = None
    memory: MemoryTimeline | None = None
    surroundings: StatedSurroundings | None = None
    history: tuple[PastRun, ...] = ()  # earlier runs in the same folder, oldest first
    bench: BenchResult | None = None
    comparison: Comparison | None = None
    matrix: MatrixResult | None = None
    profile: Profile | None = None
    review: Review | None = None

    def as_dict(self) -> dict[str, Any]:
        levels = [level.as_dict() for level in self.levels]
        engine = None if self.engine is None else self.engine.as_dict()
        content: dict[str, Any] = {"levels": levels, "engine": engine}
        if self.spec is not None:
            content = {
                "schema": SCHEMA,
                "firesteel": self.firesteel,
                "seconds": self.seconds,
                "time_utc": self.time_utc,
                "verdict": self.verdict.value,
                "unfinished": list(map(str, self.unfinished)),
                "order": self.spec.as_dict(),
                "levels": levels,
                "reductions": list(self.reductions),
                "engine": engine or {},
                "kernels": to_json(self.kernels),
                "shutdown": None if self.shutdown is None else self.shutdown.as_dict(),
                "memory": {} if self.memory is None else to_json(self.memory),
                "history": to_json(self.history),
            }
        parts = (self.bench, self.comparison, self.matrix, self.profile, self.review)
        names = ("bench", "comparison", "matrix", "profile", "review")
        content |= {name: part.as_dict() for name, part in zip(names, parts, strict=True) if part is not None}
        if self.surroundings is not None:
            content["surroundings"] = self.surroundings.as_dict()
        return content

    @property
    def verdict(self) -> Verdict:
        """The verdict on a run, by its levels.

        Levels that prove something, and the one that --level names, must have been judged; of the others, any.
        """
        if any(level.failed or not level.valid for level in self.levels):
            return Verdict.FAILED
        if self.unfinished or self.unjudged:
            return Verdict.UNPROVEN
        return conclude((level.verdict for level in self.levels), needs_all=False)

    @property
    def unjudged(self) -> tuple[Level, ...]:
        """The levels that had to be judged and were not."""
        named = () if self.spec is None else self.spec.named_levels
        required = [level for level in self.levels if level.level.is_proof or level.level in named]
        return tuple(level.level for level in required if level.verdict is Verdict.UNPROVEN)

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED

    def in_levels(self, part: Callable[[LevelResult], T | None]) -> T | None:
        """Returns a part of the first level that has it."""
        return next((value for level in self.levels if (value := part(level)) is not None), None)

    @property
    def any_bench(self) -> BenchResult | None:
        return self.bench or self.in_levels(lambda level: level.bench)

    @property
    def any_slots(self) -> SlotTable | None:
        return self.in_levels(lambda level: level.slots)

    @property
    def any_comparison(self) -> Comparison | None:
        return self.comparison or self.in_levels(lambda level: level.comparison)

    @property
    def any_matrix(self) -> MatrixResult | None:
        return self.matrix or self.in_levels(lambda level: level.matrix)

    @property
    def any_kernels(self) -> tuple[OpCalls, ...]:
        ledger = self.in_levels(lambda level: level.ledger)
        return self.kernels or (ledger.ran if ledger is not None else ())

    @property
    def any_drafts(self) -> VerifiedDrafts | None:
        ledger = self.in_levels(lambda level: level.ledger)
        return None if ledger is None else ledger.drafts

    @property
    def has_counted_bench(self) -> bool:
        """True if the benchmark was measured without a failure, on the requested path."""
        return any(level.bench is not None and level.passed and level.valid for level in self.levels)

    def counted_bench(self) -> BenchResult:
        """Returns the benchmark, or raises if there is none or it is invalid."""
        for level in self.levels:
            if level.bench is not None and not level.valid:
                raise UserError(
                    f"the benchmark of {self.name} does not count, its kernel path (level {KERNEL_PATH}) failed: "
                    f"{self._path_failure()}; measure it again on the requested path (--path names it)"
                )
        if self.any_bench is None:
            raise UserError(
                "the result holds no benchmark: run level 4, as `firesteel lab run --mode benchmark` does"
            )
        return self.any_bench

    def _path_failure(self) -> str:
        return next((level.reason for level in self.levels if level.level == KERNEL_PATH), "no reason was kept")

    @property
    def release(self) -> str:
        """The engine under test with its version and commit, as far as they are known."""
        if self.engine is None:
            return ""
        return self.engine.release or self.engine.kind or self.engine.name

    @property
    def name(self) -> str:
        """The engine, the model and the time, for messages."""
        engine = None if self.spec is None else self.spec.shown_url or self.spec.shown_engine
        words = (engine or "a run", None if self.spec is None else self.spec.model, self.time_utc)
        return ", ".join(word for word in words if word)


def parse_result(content: Mapping[str, Any]) -> LabResult:
    """Builds a result from parsed JSON: of a result.json of any version, a benchmark alone or a record."""
    if "rows" in content:
        return LabResult(bench=from_json(BenchResult, content, "the benchmark"))
    order = content.get("order")
    kernels = content.get("kernels") if "levels" in content else None  # records have another table of kernels
    spec, unknown = (None, ()) if order is None else parse_spec(order)
    profile = content.get("profile")
    return LabResult(
        levels=tuple(map(parse_level, content.get("levels") or ())),
        spec=spec,
        unknown_settings=unknown,
        firesteel=content.get("firesteel"),
        seconds=content.get("seconds") or 0.0,
        time_utc=content.get("time_utc"),
        unfinished=tuple(map(find_level, content.get("unfinished") or ())),
        reductions=tuple(content.get("reductions") or ()),
        engine=parse_part(EngineInfo, content, "engine"),
        kernels=from_json(tuple[OpCalls, ...], kernels or (), "the table of kernels"),
        shutdown=parse_part(ServerExit, content, "shutdown"),
        memory=parse_part(MemoryTimeline, content, "memory"),
        surroundings=parse_part(StatedSurroundings, content, "surroundings"),
        history=from_json(tuple[PastRun, ...], content.get("history") or (), "the history"),
        bench=parse_part(BenchResult, content, "bench"),
        comparison=parse_part(Comparison, content, "comparison"),
        matrix=parse_part(MatrixResult, content, "matrix"),
        profile=parse_profile(profile) if profile else None,
        review=parse_part(Review, content, "review"),
    )


def read_result(path: Path) -> LabResult:
    """Reads a result.json, or that of a folder."""
    path = path / RESULT if path.is_dir() else path
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give a result.json or its folder") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a result of the lab: it holds {type(content).__name__}, not an object")
    try:
        return parse_result(content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
