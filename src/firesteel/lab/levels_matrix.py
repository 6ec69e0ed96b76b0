"""Level 6: the product of gates, a server a cell; runs no cell itself."""

from __future__ import annotations

from firesteel.lab.levels import LevelResult
from firesteel.lab.order import Order
from firesteel.lab.target import Target


def run_matrix_level(target: Target, order: Order) -> LevelResult:
    return LevelResult(level="6", passed=True, was_run=False, reason="gates are flags of firesteel alone")
