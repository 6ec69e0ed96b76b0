"""From a result alone to the command that makes it again: words and environment; runs nothing itself.

A result of the lab holds its order, a matrix its gates, a record the command it came from.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firesteel.config import HIDDEN, shown_environment
from firesteel.errors import UserError
from firesteel.lab.compare.compare import find_differences
from firesteel.lab.matrix.matrix import CELLS, CLAIM
from firesteel.lab.spec import Order

PROGRAM = "firesteel"
PREFIX = "FIRESTEEL_"
# Of other engines' variables: folders, files and GPUs, which are this machine's and only listed where they differ.
PLACES = re.compile(r"_(DIR|PATH|HOME|ROOT|CACHE|FILE|VISIBLE_DEVICES)$")
SWITCHES = ("quick", "debug")
NOT_FLAGS = ("flags",)  # they come last
INTO_FOLDERS = ("bench", "lab", "profile")  # verbs whose --out is the folder of their results


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    words: tuple[str, ...]  # after the program's name
    environment: dict[str, str]  # to set
    without: tuple[str, ...]  # to take away: not set then
    differences: list[str]  # of the surroundings, in words


def plan_rerun(result: Mapping[str, Any], now: Mapping[str, Any], out: Path) -> Rerun:
    """`now` are today's surroundings as a dictionary."""
    before = (result.get("surroundings") or {}).get("environment")
    settings = find_settings(before or {})
    words = find_words(result, out)
    if hidden := [one for one in (*words, *settings.values()) if HIDDEN in one]:
        raise UserError(f"the result hides a secret that it needs ({hidden[0]}): run its command again by hand")
    return Rerun(
        words=words, environment=settings,
        without=tuple(
            name for name in find_settings(shown_environment())
            if name not in settings and (name.startswith(PREFIX) or before is not None)
        ),
        differences=find_differences(result, {"surroundings": now}),
    )  # fmt: skip


def find_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What a rerun sets: neither what only says where things lie on a machine, nor secrets of other engines."""
    return {
        name: value
        for name, value in shown_environment(environment).items()
        if name.startswith(PREFIX) or not (PLACES.search(name) or value == HIDDEN)
    }


def find_words(result: Mapping[str, Any], out: Path) -> tuple[str, ...]:
    if "order" in result:
        return words_of_order(Order.parse(result["order"]), out)
    if isinstance(result.get("matrix"), Mapping):
        check_new(out)
        return words_of_matrix(result["matrix"]["matrix"], out)
    command = (result.get("surroundings") or {}).get("command") or ()
    if not command or command[0] != PROGRAM:
        raise UserError("the result says no order, no matrix and no firesteel command: it cannot be run again")
    words = tuple(command[1:])
    return with_out(words, out) if words[:1] and words[0] in INTO_FOLDERS else words


def check_new(out: Path) -> None:
    """A matrix goes on with the cells that it finds: one that is run again must find none."""
    if (out / CELLS / CLAIM).exists():
        raise UserError(f"--out {out} holds cells that were measured before: name another folder")


def with_out(words: Sequence[str], out: Path) -> tuple[str, ...]:
    """The command with this --out instead of its own."""
    at = words.index("--") if "--" in words else len(words)
    own = list(words[:at])
    while "--out" in own:
        place = own.index("--out")
        del own[place : place + 2]
    own = [word for word in own if not word.startswith("--out=")]
    return (*own, "--out", str(out), *words[at:])


def words_of_order(order: Order, out: Path) -> tuple[str, ...]:
    """Of `lab run`; defaults are left out."""
    words = ["lab", "run"]
    for field in dataclasses.fields(order):
        value = getattr(order, field.name)
        if field.name in NOT_FLAGS or value == field.default:
            continue
        flag = f"--{field.name.replace('_', '-')}"
        given = value if isinstance(value, tuple) else (value,)
        words += [flag] if field.name in SWITCHES else [word for one in given for word in (flag, str(one))]
    return (*words, "--out", str(out), *(("--", *order.flags) if order.flags else ()))


def words_of_matrix(matrix: Mapping[str, Any], out: Path) -> tuple[str, ...]:
    gates = [word for name, values in matrix["gates"].items() for word in ("--gates", f"{name}={','.join(values)}")]
    kept = ["--engine", matrix["engine"], "--model", matrix["model"], "--cell-s", str(matrix["cell_s"])]
    is_full = matrix["plan"]["pp"] != [128]
    flags = ["--", *matrix["flags"]] if matrix["flags"] else []
    return ("lab", "matrix", *gates, *kept, *(["--full"] if is_full else []), "--out", str(out), *flags)
