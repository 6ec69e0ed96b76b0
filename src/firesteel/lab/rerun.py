"""Finds the command and the environment that produce a result again, from the result alone.

A result of the lab holds its settings, a matrix its gates, a record the command it came from.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from firesteel.config import HIDDEN, PREFIX, shown_environment
from firesteel.errors import UserError
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.engine_differences import find_engine_now, list_engine_differences
from firesteel.lab.matrix.gates_file import to_toml
from firesteel.lab.matrix.matrix import CELLS, CLAIM
from firesteel.lab.matrix.result import CONFIGURATION, SMALL, Matrix
from firesteel.lab.result import LabResult
from firesteel.lab.spec import LabSpec, to_words
from firesteel.lab.surroundings import StatedSurroundings, list_differences

PROGRAM = "firesteel"
# Variables that hold folders, files, preloaded code and GPUs; they belong to the machine and are not restored.
PLACES = re.compile(
    r"_(DIR|PATH|HOME|ROOT|CACHE|FILE|VISIBLE_DEVICES)$|^LD_|^VIRTUAL_ENV$"
    r"|^PYTHON(HOME|STARTUP|USERBASE|PYCACHEPREFIX|EXECUTABLE|BREAKPOINT)$"
)
SEARCH_PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH")  # restored if their folders exist here
OF_USER = re.compile(r"^(PYTHON|HF_)")  # set for all programs of a user: not removed if they were not set then
WORKLOAD = ("pp", "tg", "depths", "runs")  # fields of a plan that are flags of `lab matrix`
GATES = "gates.toml"  # in the folder of a matrix's rerun
WRITING_VERBS = ("bench", "lab", "profile")  # their --out is the folder of their results


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    words: tuple[str, ...]  # after the program's name
    environment: dict[str, str]  # variables to set
    without: tuple[str, ...]  # variables to remove, because they were not set then
    differences: list[str]  # of the surroundings
    files: dict[Path, str] = field(default_factory=dict)  # to write before, by path

    def in_shell(self) -> str:
        """Returns the command as it would be typed."""
        removed = ["env", *(f"-u {name}" for name in self.without)] if self.without else []
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*removed, *settings, shlex.join([PROGRAM, *self.words])])


def plan_rerun(result: LabResult, now: StatedSurroundings, out: Path) -> Rerun:
    """Plans the run that repeats a result; `now` are the current surroundings."""
    before = None if result.surroundings is None else result.surroundings.environment
    settings = find_settings(before or {})
    words, files = find_words(result, out), make_files(result, out)
    if hidden := [word for word in (*words, *settings.values(), *files.values()) if HIDDEN in word]:
        raise UserError(f"the result hides a secret that the run needs ({hidden[0]}): run its command by hand")
    added = [name for name in find_settings(shown_environment()) if name not in settings]
    without = tuple(
        name
        for name in added
        if name.startswith(PREFIX) or (before is not None and not OF_USER.match(name) and name not in SEARCH_PATHS)
    )
    kept = {name: value for name, value in (now.environment or {}).items() if name not in without}
    differences = list_differences(result.surroundings, replace(now, environment=kept | settings))
    if result.engine is not None:
        differences += list_engine_differences(result.engine, find_engine_now(result.engine, settings))
    return Rerun(words=words, files=files, environment=settings, without=without, differences=differences)


def find_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables to restore: not the places of a machine, not the secrets of other engines."""
    return {name: value for name, value in shown_environment(environment).items() if _can_restore(name, value)}


def _can_restore(name: str, value: str) -> bool:
    if name in SEARCH_PATHS:
        return all(Path(folder).exists() for folder in value.split(":") if folder)
    return name.startswith(PREFIX) or not (PLACES.search(name) or value == HIDDEN)


def find_words(result: LabResult, out: Path) -> tuple[str, ...]:
    if result.spec is not None:
        check_known(result.unknown_settings)
        return run_words(result.spec, out)
    if result.matrix is not None and result.matrix.matrix is not None:
        check_new(out)
        return matrix_words(result.matrix.matrix, out)
    command = () if result.surroundings is None else result.surroundings.command
    if not command or command[0] != PROGRAM:
        raise UserError("the result has no settings, no matrix and no firesteel command, so it cannot be rerun")
    words = command[1:]
    return replace_out(words, out) if words[:1] and words[0] in WRITING_VERBS else words


def check_known(unknown_settings: Sequence[str]) -> None:
    if unknown_settings:
        names = ", ".join(unknown_settings)
        raise UserError(f"the settings have fields that this version of firesteel does not have: {names}")


def check_new(out: Path) -> None:
    """Raises if there are cells: a matrix would continue with them instead of measuring again."""
    if (out / CELLS / CLAIM).exists():
        raise UserError(f"--out {out} holds cells that were measured before: name another folder")


def replace_out(words: Sequence[str], out: Path) -> tuple[str, ...]:
    """Returns the command with this --out instead of its own."""
    end = words.index("--") if "--" in words else len(words)
    own = list(words[:end])
    while "--out" in own:
        at = own.index("--out")
        del own[at : at + 2]
    own = [word for word in own if not word.startswith("--out=")]
    return (*own, "--out", str(out), *words[end:])


def run_words(spec: LabSpec, out: Path) -> tuple[str, ...]:
    """Returns the words of `lab run`; defaults are left out."""
    flags = ("--", *spec.flags) if spec.flags else ()
    return ("lab", "run", *to_words(spec), "--out", str(out), *flags)


def matrix_words(matrix: Matrix, out: Path) -> tuple[str, ...]:
    """Returns the words of `lab matrix`; its gates and configurations are in the file that `make_files` returns."""
    settings = ["--engine", matrix.engine, "--model", matrix.model, "--cell-s", str(matrix.cell_s)]
    texts = {"--path": matrix.path, "--expect": matrix.expect, "--reference": matrix.reference}
    texts |= {"--reference-url": matrix.reference_url, "--formats": matrix.formats}
    usual = SMALL if matrix.quick and matrix.plan != BenchPlan() else BenchPlan()
    texts |= {f"--{name}": join_numbers(getattr(matrix.plan, name), getattr(usual, name)) for name in WORKLOAD}
    switches = {"--full": usual == BenchPlan(), "--keep-going": matrix.keep_going}
    given = [word for flag, value in texts.items() if value for word in (flag, value)]
    given += [flag for flag, is_on in switches.items() if is_on]
    flags = ["--", *matrix.flags] if matrix.flags else []
    return ("lab", "matrix", "--gates-file", str(out / GATES), *settings, *given, "--out", str(out), *flags)


def join_numbers(value: int | Sequence[int], usual: int | Sequence[int]) -> str:
    """Returns numbers as they are typed; nothing if they are the usual ones."""
    if value == usual:
        return ""
    return str(value) if isinstance(value, int) else ",".join(map(str, value))


def make_files(result: LabResult, out: Path) -> dict[Path, str]:
    """Returns the files that the command reads, by path."""
    if result.spec is not None or result.matrix is None or result.matrix.matrix is None:
        return {}
    matrix = result.matrix.matrix
    gates = {name: values for name, values in matrix.gates.items() if name != CONFIGURATION}
    return {out / GATES: to_toml(matrix.environment, gates, matrix.configurations)}
