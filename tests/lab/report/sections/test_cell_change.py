"""Cells of a matrix are compared with the baseline: smaller times are better, and noise is not a change."""

from dataclasses import replace

import pytest

from firesteel.lab.matrix.result import CellOutcome, MatrixResult
from firesteel.lab.report.sections.cell_change import compare_cells, find_baseline


def cell(value, *, figure="tg_tok_s", spread=0.001, status="done"):
    samples = () if spread is None else tuple(value * (1 + spread * step) for step in (-1, 0, 1))
    return CellOutcome(status=status, gates={"g": str(value)}, figures={figure: value}, samples={figure: samples})


def changes(*cells, figure="tg_tok_s"):
    return compare_cells(MatrixResult(gates={"g": ()}, cells=cells, figures={figure: ""}), figure)


def test_higher_speed_is_better_and_lower_is_worse():
    found = changes(cell(100.0), cell(120.0), cell(60.0))
    assert found[1].heat > 0 > found[2].heat == -1.0
    assert found[1].share == pytest.approx(0.2)


def test_smaller_time_is_better():
    found = changes(*(cell(value, figure="ttft_ms") for value in (100.0, 80.0, 120.0)), figure="ttft_ms")
    assert found[1].heat > 0 > found[2].heat


def test_change_inside_the_noise_has_no_colour():
    assert changes(cell(100.0, spread=0.3), cell(120.0, spread=0.3))[1].heat == 0.0


def test_change_below_the_threshold_has_no_colour():
    assert changes(cell(100.0), cell(102.0))[1].heat == 0.0


def test_what_was_measured_once_has_no_colour():
    (change,) = changes(cell(5.0, spread=None), cell(15.0, spread=None)).values()
    assert change.heat == 0.0 and not change.is_repeated and change.share == pytest.approx(2.0)


def test_small_change_is_paler_than_a_large_one():
    assert changes(cell(100.0), cell(105.0))[1].heat == pytest.approx(0.22, abs=0.01)


def test_baseline_is_the_first_cell_that_was_measured():
    cells = (CellOutcome(status="crashed", gates={"g": "0"}), cell(100.0), cell(90.0))
    measured = MatrixResult(gates={"g": ()}, cells=cells)
    assert find_baseline(measured) is cells[1] and set(compare_cells(measured, "tg_tok_s")) == {2}


def test_cell_without_a_rank_is_the_baseline_only_if_none_has_one():
    wrong, proven = cell(100.0), replace(cell(90.0), unranked="")
    assert find_baseline(MatrixResult(gates={"g": ()}, cells=(wrong, proven))) is proven
    assert find_baseline(MatrixResult(gates={"g": ()}, cells=(wrong,))) is wrong
