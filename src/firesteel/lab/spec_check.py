"""Checks the settings of a run before a server is started and hours are spent."""

from __future__ import annotations

from pathlib import Path

from firesteel.errors import UserError
from firesteel.lab.client.wire import find_root
from firesteel.lab.level import CORRECTNESS, KERNEL_PATH, MATRIX, REGRESSION
from firesteel.lab.levels.matrix import make_matrix
from firesteel.lab.matrix.cell import check_environment, make_cell
from firesteel.lab.matrix.gates import name_choice
from firesteel.lab.matrix.result import Matrix
from firesteel.lab.path.engine_rules import EngineRules, load_rules
from firesteel.lab.path.expectation import check_names, parse_expectations
from firesteel.lab.reference.recorded import read_reference
from firesteel.lab.result import read_result
from firesteel.lab.servers.commands import HOST, find_kind, make_words
from firesteel.lab.spec import LabSpec
from firesteel.lab.trace import count_kernels


def check_spec(spec: LabSpec) -> None:
    """Raises a UserError that names the setting that cannot be used."""
    if spec.url:
        find_root(spec.url)
    else:
        make_words(spec.engine, model=spec.model, port=1, folder=Path(HOST))
    if spec.reference_url:
        find_root(spec.reference_url)
    if spec.reference and CORRECTNESS in spec.levels:
        read_reference(Path(spec.reference))
    if (spec.gates or spec.gates_file) and MATRIX in spec.levels:
        if spec.url:
            raise UserError("--gates: each cell needs its own server, and --url names one that is running already")
        check_matrix(make_matrix(spec))
    if spec.baseline and REGRESSION in spec.levels:
        read_result(Path(spec.baseline)).counted_bench()
    if KERNEL_PATH in spec.levels:
        check_path(spec)


def check_matrix(matrix: Matrix) -> None:
    """Checks the settings of all cells."""
    for chosen in matrix.cells():
        try:
            check_environment(matrix, chosen)
            check_spec(make_cell(matrix, chosen).spec)
        except UserError as error:
            raise UserError(f"{name_choice(chosen)}: {error}") from error


def check_path(spec: LabSpec) -> None:
    rules = load_rules(find_kind(spec.engine))
    if spec.trace:
        check_trace(spec, rules)
    wanted = f"--path {spec.path}" if spec.path else f"--expect {spec.expect}" if spec.expect else ""
    if not wanted:
        return
    if rules is None:
        raise UserError(f"{wanted}: there are no rules for {spec.engine}, so no path can be required")
    if spec.path and spec.path not in (names := [path.name for path in rules.paths if path.name]):
        raise UserError(f"--path {spec.path}: the rules for {rules.engine} have {', '.join(names)}")
    check_names(parse_expectations(spec.expect), rules.values, "--expect")


def check_trace(spec: LabSpec, rules: EngineRules | None) -> None:
    """Raises if no rule applies to a profile of this engine."""
    hint = "; with --url, --engine says which engine it is" if spec.url and spec.engine == "firesteel" else ""
    if rules is None:
        raise UserError(f"--trace {spec.trace}: there are no rules for {spec.engine} to judge it by{hint}")
    if not any(sign.kernels for sign in rules.signs):
        raise UserError(
            f"--trace {spec.trace}: {rules.engine} is judged by its ledger, not by a profile: leave it out{hint}"
        )
    count_kernels(Path(spec.trace))
