"""The function that runs each level."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from firesteel.lab.level import (
    BENCHMARK,
    CORRECTNESS,
    KERNEL_PATH,
    MATRIX,
    REGRESSION,
    SMOKE,
    STRESS,
    Level,
)
from firesteel.lab.level_result import LevelResult
from firesteel.lab.levels.benchmark import run_benchmark
from firesteel.lab.levels.context import LevelContext
from firesteel.lab.levels.correctness import check_correctness
from firesteel.lab.levels.kernel_path import check_kernel_path
from firesteel.lab.levels.matrix import run_matrix_level
from firesteel.lab.levels.regression import check_regression
from firesteel.lab.levels.smoke import check_smoke
from firesteel.lab.levels.stress import check_stress

RUN: Mapping[Level, Callable[[LevelContext], LevelResult]] = {
    SMOKE: check_smoke,
    KERNEL_PATH: check_kernel_path,
    CORRECTNESS: check_correctness,
    STRESS: check_stress,
    BENCHMARK: run_benchmark,
    REGRESSION: check_regression,
    MATRIX: run_matrix_level,
}
