"""Level 6: the product of gates, a server a cell; runs no cell itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from firesteel.lab.level import Checks, LevelResult
from firesteel.lab.matrix.matrix import CELLS, DONE, SMALL, Matrix, parse_gates, run_matrix
from firesteel.lab.spec import Order

QUICK_GATES = ("kv_dtype=auto,fp8", "mxfp4_layers=moe,all")
GPU_GATES = ("cuda_graphs", "dependent_launch", "run_ahead", *QUICK_GATES)
CPU_GATES = ("prefix_caching", *QUICK_GATES)
CELL_S = 1800.0  # for a cell once its server is ready


def run_matrix_level(
    order: Order, folder: Path, tell: Callable[[str], None], *, on_gpu: bool = False
) -> LevelResult:
    """After the server under test is gone: a cell needs the device for itself."""
    gates = order.gates or choose_gates(order, on_gpu)
    if not gates:
        return LevelResult(level="6", passed=True, was_run=False, reason=why_not(order))
    matrix = Matrix(
        gates=parse_gates(gates, engine=order.engine), engine=order.engine, model=order.model, flags=order.flags,
        plan=replace(SMALL, runs=1) if order.quick else SMALL, cell_s=order.ready_s + CELL_S, debug=order.debug,
        ready_s=order.ready_s, answer_s=order.answer_s, grace_s=order.grace_s,
    )  # fmt: skip
    place = folder / CELLS
    shutil.rmtree(place, ignore_errors=True)  # of an earlier run: its figures are not this one's
    found = run_matrix(matrix, place, tell=tell)
    checks = Checks()
    checks.figures["matrix"] = found
    broken = [f"{one['gates']}: {one['reason']}" for one in found["cells"] if one["status"] != DONE]
    checks.add("cells", bool(found["all_done"]), "; ".join([found["words"], *broken]))
    return checks.result("6")


def why_not(order: Order) -> str:
    if order.url:
        return f"not judged: each cell needs a server of its own, and {order.url} runs already"
    return "not judged: no --gates were given; those of firesteel alone are known"


def choose_gates(order: Order, on_gpu: bool) -> tuple[str, ...]:
    if order.engine != "firesteel" or order.url:
        return ()
    return QUICK_GATES if order.quick else GPU_GATES if on_gpu else CPU_GATES
