"""Level 6: the product of gates, with a server per cell."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from firesteel.lab.level import MATRIX
from firesteel.lab.level_result import Checks, LevelResult
from firesteel.lab.levels.context import LevelContext
from firesteel.lab.matrix.gates import name_choice
from firesteel.lab.matrix.gates_file import GatesFile, choose_gates, read_gates_file
from firesteel.lab.matrix.matrix import CELLS, run_matrix
from firesteel.lab.matrix.result import SMALL, Matrix
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict

QUICK_GATES = ("kv_dtype=auto,fp8", "prefix_caching")  # settings that keep the answers
GPU_GATES = ("cuda_graphs", "dependent_launch", "run_ahead", "kv_dtype=auto,fp8")
CPU_GATES = QUICK_GATES
DRAFT_GATE = "speculate=off,ngram"  # on a CPU, where cells are short; on a GPU it would double the hours
DRAFT_FLAGS = ("--speculate", "--draft-model", "--speculative-config", "-sc")  # the user's own choice of drafts
CELL_S = 1800.0  # time limit of a cell once its server is ready


def run_matrix_level(context: LevelContext) -> LevelResult:
    """Runs after the server under test has stopped, because a cell needs the device for itself."""
    spec = context.spec
    default = choose_default_gates(spec, on_gpu=context.device.is_cuda)
    if not (spec.gates_file or spec.gates or default):
        return LevelResult(level=MATRIX, verdict=Verdict.NOT_APPLICABLE, reason=why_no_gates(spec))
    folder = context.folder / CELLS
    shutil.rmtree(folder, ignore_errors=True)  # cells of an earlier run
    result = run_matrix(make_matrix(spec, default), folder, on_progress=context.on_progress)
    checks = Checks(MATRIX)
    faults = [f"{name_choice(cell.gates)}: {cell.reason}" for cell in result.cells if cell.reason]
    checks.add("cells", result.verdict, "; ".join([result.words, *faults]))
    return checks.result(matrix=result)


def make_matrix(spec: LabSpec, default: Sequence[str] = ()) -> Matrix:
    """Builds the matrix of a run's settings; `default` are its gates without --gates and --gates-file."""
    file = read_gates_file(Path(spec.gates_file), engine=spec.engine) if spec.gates_file else GatesFile()
    words = spec.gates if spec.gates or spec.gates_file else default
    gates = choose_gates(words, file, engine=spec.engine)
    return Matrix(
        gates=gates,
        configurations=file.list_chosen(gates),
        engine=spec.engine,
        model=spec.model,
        flags=(*file.flags, *spec.flags),
        environment=file.environment,
        plan=replace(SMALL, runs=1) if spec.quick else SMALL,
        path=spec.path,
        expect=spec.expect,
        reference=spec.reference,
        reference_url=spec.reference_url,
        formats=spec.formats,
        keep_going=spec.keep_going,
        cell_s=spec.ready_s + CELL_S,
        debug=spec.debug,
        ready_s=spec.ready_s,
        answer_s=spec.answer_s,
        grace_s=spec.grace_s,
    )


def why_no_gates(spec: LabSpec) -> str:
    if spec.url:
        return f"each cell needs its own server, and {spec.url} is running already"
    return "neither --gates nor --gates-file was given; only firesteel has default gates"


def choose_default_gates(spec: LabSpec, *, on_gpu: bool) -> tuple[str, ...]:
    if spec.engine != "firesteel" or spec.url:
        return ()
    if spec.quick or on_gpu:
        return QUICK_GATES if spec.quick else GPU_GATES
    has_drafts = any(flag.partition("=")[0] in DRAFT_FLAGS for flag in spec.flags)
    return CPU_GATES if has_drafts else (*CPU_GATES, DRAFT_GATE)
