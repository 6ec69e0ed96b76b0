"""The process of a matrix's cell: takes a server through the lab and writes the outcome.

python -m firesteel.lab.cell SPEC.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from firesteel.atomic import write_atomically
from firesteel.config import child_environment
from firesteel.errors import UserError
from firesteel.lab.bench.result import BenchResult
from firesteel.lab.codec import from_json
from firesteel.lab.level import BENCHMARK, Level
from firesteel.lab.level_result import LevelResult
from firesteel.lab.matrix.cell import CellSpec
from firesteel.lab.matrix.matrix import OUTCOME
from firesteel.lab.matrix.result import CRASHED, DONE, NOT_MEASURED, CellOutcome
from firesteel.lab.result import LabResult
from firesteel.lab.run import run_lab
from firesteel.lab.servers.shutdown import stop_servers_on_signals
from firesteel.lab.standing import explain, judge_standing
from firesteel.lab.verdict import Verdict

GB = 1e9


class CellLog:
    """Prints the progress of a cell's run into its log."""

    def begin(self, level: Level) -> None:
        print(f"level {level} {level.title}", flush=True)

    def progress(self, words: str) -> None:
        print(f"  {words}", flush=True)

    def end(self, result: LevelResult) -> None:
        print(f"level {result.level}: {result.verdict.value}: {result.reason}", flush=True)


def run_cell(cell: CellSpec, folder: Path) -> CellOutcome:
    """Returns an outcome also if the server failed."""
    inherited = child_environment({})
    environment = {name: inherited[name] for name in cell.variables}
    try:
        result = run_lab(cell.spec, folder, CellLog(), environment=environment)
    except UserError as error:
        return CellOutcome.failed(CRASHED, str(error))
    return judge_cell(result)


def judge_cell(result: LabResult) -> CellOutcome:
    """Judges a run. A cell has a rank if its path is proven, its answers are coherent and it was measured."""
    bench, status = result.any_bench, find_status(result)
    standing = judge_standing(result.levels)
    unjudged = (level for level in result.levels if level.verdict is Verdict.UNPROVEN)
    return CellOutcome(
        status=status,
        figures=first_medians(bench) if bench is not None and status == DONE else {},
        bench=bench,
        verdict=result.verdict,
        slots=result.any_slots,
        reason=standing.fault or next(map(explain, unjudged), ""),
        unranked=standing.fault,
    )


def find_status(result: LabResult) -> str:
    benchmark = next((level for level in result.levels if level.level == BENCHMARK), None)
    if any(level.diagnosis is not None for level in result.levels) or (benchmark is not None and benchmark.failed):
        return CRASHED
    return NOT_MEASURED if result.any_bench is None else DONE


def first_medians(bench: BenchResult) -> dict[str, float]:
    """Returns the medians of the first workload, peak memory and start-up time."""
    series = bench.rows[0].series if bench.rows else {}
    names: tuple[str, ...] = ("tg_tok_s", "pp_tok_s", "ttft_ms")
    figures = {name: series[name].median for name in names if name in series}
    if bench.usage is not None:
        figures["peak_memory_gb"] = (bench.usage.peak_gpu_bytes or bench.usage.peak_memory_bytes) / GB
    return figures if bench.startup_s is None else {**figures, "startup_s": bench.startup_s}


def main() -> None:
    stop_servers_on_signals()
    path = Path(sys.argv[1])
    cell = from_json(CellSpec, json.loads(path.read_text(encoding="utf-8")), str(path))
    write_atomically(path.with_name(OUTCOME), run_cell(cell, path.parent).as_dict())


if __name__ == "__main__":
    main()
