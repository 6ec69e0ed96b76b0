"""Level 6: the product of gates, with a server per cell."""

from __future__ import annotations

import shutil
from dataclasses import replace

from firesteel.lab.level import MATRIX
from firesteel.lab.level_result import Checks, LevelResult
from firesteel.lab.levels.context import LevelContext
from firesteel.lab.matrix.gates import name_choice, parse_gates
from firesteel.lab.matrix.matrix import CELLS, run_matrix
from firesteel.lab.matrix.result import DONE, SMALL, Matrix
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict

QUICK_GATES = ("kv_dtype=auto,fp8", "mxfp4_layers=moe,all")
GPU_GATES = ("cuda_graphs", "dependent_launch", "run_ahead", *QUICK_GATES)
CPU_GATES = ("prefix_caching", *QUICK_GATES)
CELL_S = 1800.0  # time limit of a cell once its server is ready


def run_matrix_level(context: LevelContext) -> LevelResult:
    """Runs after the server under test has stopped, because a cell needs the device for itself."""
    spec = context.spec
    gates = spec.gates or choose_gates(spec, on_gpu=context.device.is_cuda)
    if not gates:
        return LevelResult(level=MATRIX, verdict=Verdict.NOT_APPLICABLE, reason=why_no_gates(spec))
    folder = context.folder / CELLS
    shutil.rmtree(folder, ignore_errors=True)  # cells of an earlier run
    result = run_matrix(make_matrix(spec, gates), folder, on_progress=context.on_progress)
    checks = Checks(MATRIX)
    failed = [f"{name_choice(cell.gates)}: {cell.reason}" for cell in result.cells if cell.status != DONE]
    checks.add("cells", result.all_done, "; ".join([result.words, *failed]))
    return checks.result(matrix=result)


def make_matrix(spec: LabSpec, gates: tuple[str, ...]) -> Matrix:
    return Matrix(
        gates=parse_gates(gates, engine=spec.engine),
        engine=spec.engine,
        model=spec.model,
        flags=spec.flags,
        plan=replace(SMALL, runs=1) if spec.quick else SMALL,
        cell_s=spec.ready_s + CELL_S,
        debug=spec.debug,
        ready_s=spec.ready_s,
        answer_s=spec.answer_s,
        grace_s=spec.grace_s,
    )


def why_no_gates(spec: LabSpec) -> str:
    if spec.url:
        return f"each cell needs its own server, and {spec.url} is running already"
    return "no --gates were given; only firesteel has default gates"


def choose_gates(spec: LabSpec, *, on_gpu: bool) -> tuple[str, ...]:
    if spec.engine != "firesteel" or spec.url:
        return ()
    return QUICK_GATES if spec.quick else GPU_GATES if on_gpu else CPU_GATES
