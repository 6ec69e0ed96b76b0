"""What a cell is: the lab run of its choice of gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firesteel.config import hide_secrets
from firesteel.errors import UserError
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.matrix.gates import OWN_ENGINE, list_removed, make_environment, make_flags
from firesteel.lab.matrix.result import CONFIGURATION, Configuration, Matrix
from firesteel.lab.matrix.variables import check_beaten
from firesteel.lab.servers.commands import fixed_environment, split_words
from firesteel.lab.spec import LabSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpec:
    """The input of a cell's process, which has the values of its variables in its environment."""

    chosen: dict[str, str]
    spec: LabSpec
    variables: tuple[str, ...]  # names of those that it sets


def make_cell(matrix: Matrix, chosen: Mapping[str, str]) -> CellSpec:
    configuration = find_configuration(matrix, chosen)
    gate_flags = make_flags(chosen, engine=matrix.engine)
    spec = LabSpec(
        level=matrix.level,
        engine=matrix.engine,
        model=matrix.model,
        flags=(*matrix.flags, *configuration.flags, *gate_flags),
        path=configuration.path or matrix.path,
        expect=configuration.expect or matrix.expect,
        reference=matrix.reference,
        reference_url=matrix.reference_url,
        formats=matrix.formats,
        quick=matrix.quick,
        debug=matrix.debug,
        ready_s=matrix.ready_s,
        answer_s=matrix.answer_s,
        grace_s=matrix.grace_s,
        keep_going=matrix.keep_going,
        **find_workload(matrix.plan),
    )
    return CellSpec(chosen=dict(chosen), spec=spec, variables=tuple(find_environment(matrix, chosen)))


def find_workload(plan: BenchPlan) -> dict[str, Any]:
    """Returns the settings of a run that give this plan; none for the usual one."""
    if plan == BenchPlan():
        return {}
    same = {name: getattr(plan, name) for name in ("pp", "tg", "depths", "runs", "warmups", "temperature")}
    return {**same, "streams": plan.concurrency}


def find_environment(matrix: Matrix, chosen: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that a cell sets."""
    kept = {**matrix.environment, **find_configuration(matrix, chosen).environment, **make_environment(chosen)}
    return {name: value for name, value in kept.items() if name not in list_removed(chosen)}


def find_configuration(matrix: Matrix, chosen: Mapping[str, str]) -> Configuration:
    name = chosen.get(CONFIGURATION, "")
    return next((known for known in matrix.configurations if known.name == name), Configuration(name=name))


def check_environment(matrix: Matrix, chosen: Mapping[str, str]) -> None:
    """Raises if a variable of a cell would have no effect."""
    named = [*find_configuration(matrix, chosen).environment, *make_environment(chosen), *list_removed(chosen)]
    if twice := sorted(name for name in set(named) if named.count(name) > 1):
        raise UserError(f"{twice[0]} is set by a gate and by the configuration {chosen[CONFIGURATION]}: choose one")
    fixed = fixed_environment(matrix.engine, debug=matrix.debug)
    words = [word.removeprefix("--env=").removeprefix("-e") for word in split_words(matrix.engine)]
    for name in (*named, *matrix.environment):
        if name in fixed or any(word.startswith(f"{name}=") for word in words):
            raise UserError(
                f"{name} cannot be varied: --engine {hide_secrets((matrix.engine,))[0]}"
                f"{' with --debug' * matrix.debug} sets it; a command line without it leaves it to the matrix"
            )
    if matrix.engine == OWN_ENGINE:
        check_beaten(make_cell(matrix, chosen).spec.flags, find_environment(matrix, chosen))
