"""The levels of a lab run: their numbers, titles, modes and prerequisites, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firesteel.errors import UserError

ALL, VERIFY, STRESS_MODE, BENCHMARK_MODE = MODES = ("all", "verify", "stress", "benchmark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    number: str  # as in --level and result.json
    title: str
    modes: tuple[str, ...]  # besides "all", which has every level
    needs_server: bool = True  # False: runs after the server has stopped
    prerequisites: tuple[str, ...] = ()  # numbers of the levels that --level N runs before it
    is_proof: bool = False  # True: a run is unproven unless every check of this level was judged

    def __str__(self) -> str:
        return self.number


SMOKE = Level(number="1", title="smoke", modes=(VERIFY, STRESS_MODE, BENCHMARK_MODE))
# Later results are valid only if this level did not fail.
KERNEL_PATH = Level(number="1.5", title="kernel path", modes=(VERIFY, STRESS_MODE, BENCHMARK_MODE), is_proof=True)
CORRECTNESS = Level(number="2", title="correctness", modes=(VERIFY,), prerequisites=("1.5",), is_proof=True)
STRESS = Level(number="3", title="stress", modes=(STRESS_MODE,), prerequisites=("1.5",))
BENCHMARK = Level(number="4", title="benchmark", modes=(BENCHMARK_MODE,), prerequisites=("1.5",))
REGRESSION = Level(
    number="5", title="regression", modes=(BENCHMARK_MODE,), needs_server=False, prerequisites=("1.5", "4")
)
MATRIX = Level(number="6", title="matrix", modes=(BENCHMARK_MODE,), needs_server=False, prerequisites=("1.5",))
LEVELS = (SMOKE, KERNEL_PATH, CORRECTNESS, STRESS, BENCHMARK, REGRESSION, MATRIX)


def find_level(number: str) -> Level:
    for level in LEVELS:
        if level.number == number:
            return level
    raise UserError(f"there is no level {number!r}: the levels are {', '.join(map(str, LEVELS))}")


def list_levels(mode: str) -> tuple[Level, ...]:
    return tuple(level for level in LEVELS if mode == ALL or mode in level.modes)


def parse_levels(text: str) -> tuple[Level, ...]:
    """Parses the numbers of --level, such as 2,4."""
    return tuple(find_level(number.strip()) for number in text.split(","))


def with_prerequisites(named: Sequence[Level]) -> tuple[Level, ...]:
    """Returns the levels that --level N,M runs, in order."""
    numbers = {number for level in named for number in (*level.prerequisites, level.number)}
    return tuple(level for level in LEVELS if level.number in numbers)
