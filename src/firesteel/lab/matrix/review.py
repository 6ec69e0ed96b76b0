"""Reviews one gate: a hypothesis, criteria, measurements of both sides and a verdict.

Both sides run in alternation for several rounds, each with its own server. A round's median is one sample: what
counts is the spread between rounds. Correctness is checked for the side that is on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from firesteel.config import all_settings
from firesteel.errors import UserError
from firesteel.lab.bench.result import BenchResult
from firesteel.lab.compare.compare import FASTER, THRESHOLD, UNCLEAR, Comparison, compare
from firesteel.lab.compare.samples import pool_samples
from firesteel.lab.matrix.gates import OFF, ON, OWN_ENGINE, WITH, WITHOUT, parse_gates
from firesteel.lab.matrix.matrix import CELL, OnProgress, read_outcome, run_matrix, slug
from firesteel.lab.matrix.result import DONE, CellOutcome, Matrix
from firesteel.lab.matrix.variables import ENV
from firesteel.lab.verdict import Verdict

ACCEPTED, REJECTED, MIXED, NO_DIFFERENCE, OPEN = "accepted", "rejected", "mixed", "no difference", "open"


class AnswerVerdict(NamedTuple):
    """The correctness of the answers with the gate on."""

    is_right: bool | None  # None: not compared
    words: str


@dataclass(slots=True)
class Rounds:
    """What was measured of both sides."""

    sides: dict[str, list[BenchResult]]  # one benchmark per round
    faults: dict[str, CellOutcome]  # the first cell of a side that has no rank

    @property
    def is_complete(self) -> bool:
        return all(fault.status == DONE for fault in self.faults.values())

    def list_faults(self, gate: str) -> str:
        return "; ".join(f"{gate}={value}: {fault.unranked}" for value, fault in self.faults.items())


NOT_ASKED = AnswerVerdict(None, "not compared: --no-correctness")
CheckAnswers = Callable[[Matrix, Mapping[str, str], Path], AnswerVerdict]  # choice of gates, folder for its results


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    criterion: str
    wanted: str
    found: str
    met: bool | None  # None: hidden by the spread of the runs, or not judged


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
        return asdict(self)


def review_gate(
    matrix: Matrix,
    folder: Path,
    *,
    rounds: int = 3,
    hypothesis: str = "",
    on_progress: OnProgress = print,
    check: CheckAnswers | None = None,
    command: Sequence[str] = CELL,
) -> tuple[Review, Comparison | None]:
    """Reviews the only gate of `matrix`, with its values off and on. Removes earlier rounds in `folder`.

    Without figures of both sides there is no comparison.
    """
    gate, (off, on) = find_sides(matrix)
    clear(folder)
    rounds_done = measure_rounds(matrix, folder, rounds, on_progress, command)
    sides, compared = rounds_done.sides, None
    if rounds_done.is_complete:
        compared = compare(pool_samples(sides[off]), pool_samples(sides[on]))
    answers = NOT_ASKED
    if check is not None and compared is not None:
        on_progress(f"correctness with {gate}={on}")
        answers = check(matrix, {gate: on}, folder / "correctness")
    elif compared is None:
        answers = AnswerVerdict(None, "not compared: the measurement ended early")
    verdict, why = judge_rounds(rounds_done, gate, on, answers) or judge(compared or Comparison(), answers)
    correct = Criterion(
        criterion="correct", wanted="level 2 passes with the gate on", found=answers.words, met=answers.is_right
    )
    review = Review(
        gate=gate,
        off=off,
        on=on,
        hypothesis=hypothesis or suppose(gate, off, on),
        verdict=verdict,
        why=why,
        criteria=[correct, path_criterion(rounds_done, gate), *speed_criteria(compared or Comparison())],
        rounds=rounds,
    )
    return review, compared


def measure_rounds(
    matrix: Matrix, folder: Path, rounds: int, on_progress: OnProgress, command: Sequence[str]
) -> Rounds:
    """Measures both sides in every round; the first round that cannot be measured is the last."""
    gate, values = find_sides(matrix)
    measured = Rounds({value: [] for value in values}, {})
    for number in range(rounds):
        place = folder / f"round-{number + 1}"
        on_progress(f"round {number + 1} of {rounds}")
        for cell in run_matrix(matrix, place, on_progress=on_progress, command=command).cells:
            outcome = read_outcome(place / f"{slug(cell.gates)}.json")
            assert outcome is not None
            if outcome.unranked:
                measured.faults.setdefault(cell.gates[gate], outcome)
            if outcome.bench is not None:
                measured.sides[cell.gates[gate]].append(outcome.bench)
        if not measured.is_complete:
            break
    return measured


def clear(folder: Path) -> None:
    """Removes the rounds and answers of an earlier review."""
    for place in [*folder.glob("round-*"), folder / "correctness"]:
        if place.is_dir():
            shutil.rmtree(place)


def find_sides(matrix: Matrix) -> tuple[str, tuple[str, str]]:
    if len(matrix.gates) != 1 or len(next(iter(matrix.gates.values()))) != 2:
        raise UserError("a review takes one gate with two values, such as kv_dtype=auto,fp8 or prefix_caching")
    [(gate, (off, on))] = matrix.gates.items()
    return gate, (off, on)


def parse_gate(word: str, *, engine: str = OWN_ENGINE) -> dict[str, tuple[str, ...]]:
    """Parses a gate.

    An on/off setting is reviewed from off to on, a flag or variable with one value from without to with it.
    """
    if "=" not in word and not word.startswith(ENV):
        word += f"={OFF},{ON}" if engine == OWN_ENGINE else f"={WITHOUT},{WITH}"
    gates = parse_gates([word], engine=engine)
    [(name, values)] = gates.items()
    may_be_left_out = name.startswith(ENV) or engine != OWN_ENGINE
    return {name: (WITHOUT, *values)} if may_be_left_out and len(values) == 1 else gates


def suppose(gate: str, off: str, on: str) -> str:
    about = f" ({all_settings()[gate].help})" if gate in all_settings() else ""
    return f"{gate}={on} is faster than {gate}={off} by {100 * THRESHOLD:g} % or more, and as correct{about}"


def speed_criteria(compared: Comparison) -> list[Criterion]:
    """Returns a criterion per figure: on is not worse."""
    return [
        Criterion(
            criterion=f"{row.name}: {row.figure}",
            wanted="not worse beyond the spread of the runs",
            found=f"{row.before:.4g} -> {row.after:.4g} {row.unit}, {100 * row.change:+.1f} %: {row.verdict}",
            met=None if row.verdict == UNCLEAR else not row.is_worse,
        )
        for row in compared.rows
    ]


def path_criterion(rounds: Rounds, gate: str) -> Criterion:
    has_failed = any(fault.verdict is Verdict.FAILED for fault in rounds.faults.values())
    return Criterion(
        criterion="kernel path",
        wanted="proven on both sides",
        found=rounds.list_faults(gate) or "proven in every round",
        met=False if has_failed else None if rounds.faults else True,
    )


def judge_rounds(rounds: Rounds, gate: str, on: str, answers: AnswerVerdict) -> tuple[str, str] | None:
    """Returns the verdict if a side has no valid figures: a gate that fails is rejected, the rest stays open."""
    if not rounds.faults or answers.is_right is False:
        return None
    if on in rounds.faults and rounds.faults[on].verdict is Verdict.FAILED:
        return REJECTED, rounds.list_faults(gate)
    return OPEN, f"the figures do not count: {rounds.list_faults(gate)}"


def judge(compared: Comparison, answers: AnswerVerdict) -> tuple[str, str]:
    """Returns the verdict and its reason."""
    better = [row for row in compared.rows if row.verdict == FASTER]
    if answers.is_right is False:
        return REJECTED, f"the answers are wrong: {answers.words}"
    if compared.regressions:
        if not better:
            return REJECTED, compared.in_words()
        counts = f"{len(better)} figures are better and {len(compared.regressions)} are worse"
        return MIXED, f"{counts}: {compared.in_words()}"
    if better and answers.is_right is None:
        return OPEN, f"{len(better)} figures are better, but the answers were {answers.words}"
    if better:
        gain = max(better, key=lambda row: abs(row.change))
        words = f"{gain.name} {gain.figure} by {100 * gain.change:+.1f} %"
        return ACCEPTED, f"{len(better)} figures are better, {words}"
    if compared.is_unclear:
        return OPEN, "the spread of the runs hides the difference: more rounds are needed"
    return NO_DIFFERENCE, compared.in_words()


def with_runs(matrix: Matrix, runs: int) -> Matrix:
    return replace(matrix, plan=replace(matrix.plan, runs=runs))
