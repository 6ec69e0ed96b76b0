"""The product of gates, each cell measured in a process of its own; goes on where it was interrupted.

A cell's outcome is a file, there whole or not at all: one that exists is not measured again, whether it was done or
crashed. The cells of a folder belong to one matrix; another in the same folder is refused. Each says the commit and
the device it was measured with, so that a matrix that went on with others says so.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from firesteel.config import hide_secrets, knobs
from firesteel.device import find_device
from firesteel.errors import UserError
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.servers.shutdown import run_apart
from firesteel.surroundings import PACKAGE, find_commit
from firesteel.whole import write_whole

DONE, CRASHED, TOO_LONG = "done", "crashed", "too long"
FIGURES = {"tg_tok_s": "tok/s", "pp_tok_s": "tok/s", "ttft_ms": "ms", "peak_memory_gb": "GB", "startup_s": "s"}
ON, OFF = "on", "off"
CELLS, CLAIM = "cells", "matrix.json"  # folder of cells, and the file in it that says whose they are
STACKS_S = 30.0  # for a cell, beyond the grace that its server is given twice
TAIL = 2000  # characters of what a crashed cell said
MOST_NAME = 120  # characters of a file's name
SMALL = BenchPlan(pp=(128,), tg=(32,), depths=(0,), concurrency=(1,), cached_depths=(), runs=3)
CELL = (sys.executable, "-m", "firesteel.lab.matrix.cell")
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    gates: Mapping[str, tuple[str, ...]]  # gate -> its values
    engine: str = "firesteel"
    model: str = "kindling"
    flags: tuple[str, ...] = ()  # of every cell
    plan: BenchPlan = SMALL
    cell_s: float = 3600.0  # that a cell may take
    debug: bool = False
    ready_s: float = 1800.0  # these three of a cell's server
    answer_s: float = 600.0
    grace_s: float = 45.0

    def cells(self) -> list[dict[str, str]]:
        return [dict(zip(self.gates, chosen, strict=True)) for chosen in itertools.product(*self.gates.values())]

    def as_dict(self) -> dict[str, Any]:
        """As it may be kept."""
        engine, *flags = hide_secrets((self.engine, *self.flags))
        gates = {name: list(values) for name, values in self.gates.items()}
        return {**asdict(self), "gates": gates, "engine": engine, "flags": flags}


def parse_gates(words: Sequence[str], *, engine: str = "firesteel") -> dict[str, tuple[str, ...]]:
    """From "kv_dtype=auto,fp8"; a gate alone is on and off."""
    gates: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        gates[name] = tuple(value.strip() for value in values.split(",")) if equals else (ON, OFF)
        if not all(gates[name]) or len(set(gates[name])) < len(gates[name]):
            raise UserError(f"--gates {word}: wants values that differ, as kv_dtype=auto,fp8")
        if engine == "firesteel":
            check_gate(name, gates[name])
    if not gates:
        raise UserError("name at least one gate, as --gates kv_dtype=auto,fp8 --gates prefix_caching")
    return gates


def check_gate(name: str, values: Sequence[str]) -> None:
    """Our own gates are knobs: a name that is none is an error, and so is a value that no switch has."""
    known = knobs()
    if name not in known:
        raise UserError(f"there is no gate {name!r}; gates are the settings of `firesteel env`: {', '.join(known)}")
    if known[name].type is bool and (wrong := set(values) - {ON, OFF}):
        raise UserError(f"{name} is a switch: its values are {ON} and {OFF}, not {', '.join(sorted(wrong))}")


def flags_of(chosen: Mapping[str, str], *, engine: str = "firesteel") -> list[str]:
    """Ours say --no-NAME for off; of another engine, off is the flag left out."""
    flags = []
    for name, value in chosen.items():
        flag = f"--{name.replace('_', '-')}"
        is_switch = knobs()[name].type is bool if engine == "firesteel" else value in (ON, OFF)
        if not is_switch:
            flags += [flag, value]
        elif value == ON:
            flags.append(flag)
        elif engine == "firesteel":
            flags.append(f"--no-{name.replace('_', '-')}")
    return flags


def run_matrix(
    matrix: Matrix, folder: Path, *, tell: Tell = print, command: Sequence[str] = CELL, again: bool = False
) -> dict[str, Any]:
    """All cells, as the report reads them. `again` measures those that crashed once more."""
    folder.mkdir(parents=True, exist_ok=True)
    claim(matrix, folder)
    cells, origin = matrix.cells(), find_origin()
    outcomes = read_known(cells, folder, again=again)
    if outcomes:
        mixed = find_mixed(list(outcomes.values()), origin)
        words = f"{len(outcomes)} of {len(cells)} cells were measured before and stay as they are"
        tell("; ".join([words, *mixed]))
    for number, chosen in enumerate(cells):
        name = slug(chosen)
        if name not in outcomes:
            tell(f"cell {number + 1} of {len(cells)}: {label(chosen)}")
            outcomes[name] = {**measure_cell(matrix, chosen, folder, command), **origin}
            write_whole(folder / f"{name}.json", outcomes[name])
    return summarise(matrix, [outcomes[slug(chosen)] for chosen in cells], origin)


def read_known(cells: Sequence[Mapping[str, str]], folder: Path, *, again: bool) -> dict[str, dict[str, Any]]:
    """Outcomes that stay as they are, by slug; `again` leaves out those that did not get done."""
    found = {slug(chosen): read_outcome(folder / f"{slug(chosen)}.json") for chosen in cells}
    return {name: one for name, one in found.items() if one and not (again and one["status"] != DONE)}


def find_origin() -> dict[str, str | None]:
    commit, is_dirty = find_commit(PACKAGE)
    return {"commit": f"{commit} with changes" if is_dirty else commit, "device": find_device().name}


def find_mixed(outcomes: Sequence[Mapping[str, Any]], origin: Mapping[str, str | None]) -> list[str]:
    """In words, which cells were measured with another commit or on another device than this."""
    others = Counter(tuple(one.get(name) for name in origin) for one in outcomes)
    del others[tuple(origin.values())]
    if not others:
        return []
    found = ", ".join(
        f"{count} of them with commit {commit} on {device}" for (commit, device), count in others.items()
    )
    return [f"NOT ALL COMPARABLE: {found}; this is commit {origin['commit']} on {origin['device']}"]


def summarise(
    matrix: Matrix, outcomes: Sequence[Mapping[str, Any]], origin: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """`origin` is what cells of today are measured with."""
    done = sum(one["status"] == DONE for one in outcomes)
    mixed = find_mixed(outcomes, origin) if origin else []
    shown = {name: unit for name, unit in FIGURES.items() if any(name in one["figures"] for one in outcomes)}
    cells = [{name: value for name, value in one.items() if name != "bench"} for one in outcomes]
    return {
        "gates": {name: list(values) for name, values in matrix.gates.items()}, "figures": shown, "cells": cells,
        "matrix": matrix.as_dict(), "words": "; ".join([f"{done} of {len(outcomes)} cells done", *mixed]),
        "all_done": done == len(outcomes),
    }  # fmt: skip


def measure_cell(matrix: Matrix, chosen: Mapping[str, str], folder: Path, command: Sequence[str]) -> dict[str, Any]:
    """In a process of its own, which is ended whatever happens."""
    place = folder / slug(chosen)
    place.mkdir(exist_ok=True)
    order, outcome = place / "order.json", place / "outcome.json"
    outcome.unlink(missing_ok=True)
    order.touch(mode=0o600)  # the one place where the cell has a key from
    whole = {**matrix.as_dict(), "engine": matrix.engine, "flags": matrix.flags, "chosen": dict(chosen)}
    order.write_text(json.dumps(whole), encoding="utf-8")
    start = time.monotonic()
    log = place / "cell.log"
    code = run_apart([*command, str(order)], log, most_s=matrix.cell_s, patience_s=2 * matrix.grace_s + STACKS_S)
    found = read_outcome(outcome) or {"status": CRASHED, "figures": {}, "reason": in_words(code, log)}
    if code is None:
        found = {"status": TOO_LONG, "figures": {}, "reason": f"not done after {matrix.cell_s:.0f} s"}
    return {"gates": dict(chosen), "seconds": time.monotonic() - start, **found}


def in_words(code: int | None, log: Path) -> str:
    how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
    tail = log.read_text(encoding="utf-8", errors="replace")[-TAIL:].strip().splitlines()
    return f"{how}: {tail[-1]}" if tail else how


def claim(matrix: Matrix, folder: Path) -> None:
    """The folder is this matrix's."""
    path = folder / CLAIM
    known = read_outcome(path)
    if known is None:
        write_whole(path, matrix.as_dict())
    elif {**Matrix(gates={}).as_dict(), **known} != json.loads(json.dumps(matrix.as_dict())):
        raise UserError(f"{folder} holds another matrix: choose another --out, or delete that folder")


def read_outcome(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): delete it, and that cell is measured again") from error
    return dict(found)


def slug(chosen: Mapping[str, str]) -> str:
    """A file's name; with a mark of its own where letters were left out, so that no two cells share one."""
    words = ",".join(f"{name}={value}" for name, value in chosen.items())
    safe = re.sub(r"[^\w=.,-]+", "-", words)[:MOST_NAME]
    return safe if safe == words else f"{safe}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def label(chosen: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in chosen.items())
