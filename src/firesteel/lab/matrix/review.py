"""A review sheet for one gate: a hypothesis, what would settle it, both sides measured, a verdict.

Both sides run in turn, several rounds of each, every one with a server of its own. A round's median is one sample:
what counts is the spread between rounds. Correctness is asked of the side that is on.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from firesteel.config import knobs
from firesteel.errors import UserError
from firesteel.lab.compare.compare import FASTER, MORE_MEMORY, SLOWER, THRESHOLD, UNCLEAR, Comparison, compare
from firesteel.lab.matrix.matrix import CELL, DONE, Matrix, Tell, flags_of, parse_gates, run_matrix, slug
from firesteel.lab.servers.shutdown import run_apart

ACCEPTED, REJECTED, MIXED, NO_DIFFERENCE, OPEN = "accepted", "rejected", "mixed", "no difference", "open"
# flags, folder -> whether it is right, None where nobody compared, and in words
Check = Callable[[Sequence[str], Path], tuple[bool | None, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    criterion: str
    wanted: str
    found: str
    met: bool | None  # None where the spread of the runs hides it


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    gate: str
    off: str
    on: str
    hypothesis: str
    criteria: list[Criterion]
    verdict: str
    why: str
    rounds: int

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "criteria": [asdict(one) for one in self.criteria]}


def review_gate(
    matrix: Matrix,
    folder: Path,
    *,
    rounds: int = 3,
    hypothesis: str = "",
    tell: Tell = print,
    check: Check | None = None,
    command: Sequence[str] = CELL,
) -> tuple[Review, Comparison]:
    """`matrix` has the one gate with the values off and on, in this order. Begins anew whatever `folder` holds."""
    gate, (off, on) = find_sides(matrix)
    clear(folder)
    sides: dict[str, list[dict[str, Any]]] = {off: [], on: []}
    for number in range(rounds):
        place = folder / f"round-{number + 1}"
        tell(f"round {number + 1} of {rounds}")
        found = run_matrix(matrix, place, tell=tell, command=command)
        for cell in found["cells"]:
            if cell["status"] != DONE:
                raise UserError(f"{gate}={cell['gates'][gate]} could not be measured: {cell['reason']}")
            whole = json.loads((place / f"{slug(cell['gates'])}.json").read_text(encoding="utf-8"))
            sides[cell["gates"][gate]].append(whole["bench"])
    compared = compare(pool(sides[off]), pool(sides[on]))
    is_right: bool | None
    if check is None:
        is_right, words = True, "not asked"
    else:
        tell(f"correctness with {gate}={on}")
        is_right, words = check(
            [*matrix.flags, *flags_of({gate: on}, engine=matrix.engine)], folder / "correctness"
        )
    verdict, why = judge(compared, is_right, words)
    criteria = [Criterion(criterion="correct", wanted="level 2 passes with the gate on", found=words, met=is_right)]
    return Review(
        gate=gate, off=off, on=on, hypothesis=hypothesis or suppose(gate, off, on), verdict=verdict, why=why,
        criteria=criteria + speed_criteria(compared), rounds=rounds,
    ), compared  # fmt: skip


def clear(folder: Path) -> None:
    """Of an earlier review: its rounds and answers are not this one's."""
    for place in [*folder.glob("round-*"), folder / "correctness"]:
        if place.is_dir():
            shutil.rmtree(place)


def find_sides(matrix: Matrix) -> tuple[str, tuple[str, str]]:
    if len(matrix.gates) != 1 or len(next(iter(matrix.gates.values()))) != 2:
        raise UserError("a review is of one gate with two values, as kv_dtype=auto,fp8 or prefix_caching")
    [(gate, (one, other))] = matrix.gates.items()
    return gate, (one, other)


def parse_gate(word: str, *, engine: str = "firesteel") -> dict[str, tuple[str, ...]]:
    """A switch is reviewed from off to on."""
    return parse_gates([word if "=" in word else f"{word}=off,on"], engine=engine)


def suppose(gate: str, off: str, on: str) -> str:
    about = f" ({knobs()[gate].help})" if gate in knobs() else ""
    return f"{gate}={on} is faster than {gate}={off} by {100 * THRESHOLD:g} % or more, and as correct{about}"


def pool(benches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One benchmark whose samples are the rounds' medians; memory is the most of any."""
    rows = []
    for row in benches[0]["rows"]:
        same = [one for bench in benches for one in bench["rows"] if one["name"] == row["name"]]
        series = {
            name: {**one, "values": [statistics.median(each["series"][name]["values"]) for each in same]}
            for name, one in row["series"].items()
            if all(name in each["series"] for each in same)
        }
        rows.append({"name": row["name"], "series": series})
    usages = [bench["usage"] for bench in benches if bench.get("usage")]
    most = max(usages, key=lambda usage: usage["peak_memory_bytes"], default=None)
    return {**benches[0], "rows": rows, "usage": most}


def speed_criteria(compared: Comparison) -> list[Criterion]:
    """One a figure: on is not worse."""
    return [
        Criterion(
            criterion=f"{row.name}: {row.figure}", wanted="not worse beyond the spread of the runs",
            found=f"{row.before:.4g} -> {row.after:.4g} {row.unit}, {100 * row.change:+.1f} %: {row.verdict}",
            met=None if row.verdict == UNCLEAR else row.verdict not in (SLOWER, MORE_MEMORY),
        )
        for row in compared.rows
    ]  # fmt: skip


def judge(compared: Comparison, is_right: bool | None, words: str) -> tuple[str, str]:
    better = [row for row in compared.rows if row.verdict == FASTER]
    worse = compared.regressions
    if is_right is False:
        return REJECTED, f"the answers are wrong: {words}"
    if better and worse:
        return MIXED, f"{len(better)} figures are better and {len(worse)} are worse: {compared.in_words()}"
    if worse:
        return REJECTED, compared.in_words()
    if better and is_right is None:
        return OPEN, f"{len(better)} figures are better, but the answers were {words}"
    if better:
        gain = max(better, key=lambda row: abs(row.change))
        return (
            ACCEPTED,
            f"{len(better)} figures are better, {gain.name} {gain.figure} by {100 * gain.change:+.1f} %",
        )
    if any(row.verdict == UNCLEAR for row in compared.rows):
        return OPEN, "the spread of the runs hides the difference: more rounds are needed"
    return NO_DIFFERENCE, compared.in_words()


def check_level_two(matrix: Matrix) -> Check:
    """`firesteel lab run --level 2` with the gate on, in a process of its own."""

    def check(flags: Sequence[str], folder: Path) -> tuple[bool | None, str]:
        words = ["lab", "run", "--level", "2", "--quick", "--engine", matrix.engine, "--model", matrix.model]
        command = [sys.executable, "-m", "firesteel", *words, "--out", str(folder), "--", *flags]
        folder.mkdir(parents=True, exist_ok=True)
        run_apart(command, folder / "check.log")
        try:
            levels = json.loads((folder / "result.json").read_text(encoding="utf-8"))["levels"]
        except (OSError, ValueError, KeyError) as error:
            return None, f"not compared: level 2 left no result in {folder}: {error}"
        return read_level_two(levels)

    return check


def read_level_two(levels: Sequence[Mapping[str, Any]]) -> tuple[bool | None, str]:
    """Neither right nor wrong where it was not run, or on another path than the one asked for."""
    found = next((one for one in levels if one["level"] == "2"), None)
    if found is None:
        return None, "not compared: level 2 was not run"
    if not found["was_run"]:
        return None, f"not compared: {found['reason']}"
    if not found["valid"]:
        return None, f"not compared: the kernel path was not the one asked for ({found['reason']})"
    return bool(found["passed"]), str(found["reason"])


def with_plan(matrix: Matrix, runs: int) -> Matrix:
    return replace(matrix, plan=replace(matrix.plan, runs=runs))
