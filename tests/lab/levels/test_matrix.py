"""Level 6: which gates, and what a cell that crashed does to the verdict."""

from firesteel.lab.levels import matrix as levels_matrix
from firesteel.lab.levels.matrix import choose_gates, run_matrix_level
from firesteel.lab.matrix.matrix import parse_gates
from firesteel.lab.spec import Order


def outcome(statuses):
    cells = [{"gates": {"a": str(one)}, "status": status, "reason": "so"} for one, status in enumerate(statuses)]
    return {"cells": cells, "words": f"{len(cells)} cells", "all_done": set(statuses) == {"done"}}


def run(monkeypatch, tmp_path, statuses, **fields):
    seen = []

    def run_matrix(matrix, folder, tell):
        seen.append(matrix)
        return outcome(statuses)

    monkeypatch.setattr(levels_matrix, "run_matrix", run_matrix)
    return run_matrix_level(Order(**fields), tmp_path, print), seen


def test_quick_is_two_by_two_with_one_run_each(monkeypatch, tmp_path):
    found, [matrix] = run(monkeypatch, tmp_path, ["done"] * 4, quick=True, flags=("--tile", "auto"))
    assert (
        found.passed and len(matrix.cells()) == 4 and matrix.plan.runs == 1 and matrix.flags == ("--tile", "auto")
    )


def test_crashed_cell_fails_the_level_with_its_reason(monkeypatch, tmp_path):
    found, _ = run(monkeypatch, tmp_path, ["done", "crashed"])
    assert not found.passed and "so" in found.reason


def test_cells_of_an_earlier_run_are_not_taken_for_this_ones(monkeypatch, tmp_path):
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "old.json").write_text("{}")
    run(monkeypatch, tmp_path, ["done"])
    assert not (tmp_path / "cells").exists()


def test_other_engines_need_gates_to_be_named(monkeypatch, tmp_path):
    found, seen = run(monkeypatch, tmp_path, ["done"], engine="vllm")
    assert found.passed and not found.was_run and not seen
    found, [matrix] = run(monkeypatch, tmp_path, ["done"] * 2, engine="vllm", gates=("enforce_eager",))
    assert found.was_run and matrix.cells() == [{"enforce_eager": "on"}, {"enforce_eager": "off"}]


def test_server_that_runs_already_has_no_cells_and_the_reason_is_the_true_one(monkeypatch, tmp_path):
    found, seen = run(monkeypatch, tmp_path, ["done"], url="http://x:1")
    assert not found.was_run and not seen and "http://x:1 runs already" in found.reason


def test_cells_get_the_limits_and_the_debugging_that_were_asked_for(monkeypatch, tmp_path):
    given = {"debug": True, "ready_s": 7200.0, "answer_s": 5.0, "grace_s": 1.0}
    _, [matrix] = run(monkeypatch, tmp_path, ["done"], **given)
    assert {name: getattr(matrix, name) for name in given} == given
    assert matrix.cell_s > 7200.0  # its server may take that long to start


def test_every_gate_that_is_chosen_exists():
    for order in (Order(), Order(quick=True)):
        for on_gpu in (False, True):
            assert parse_gates(choose_gates(order, on_gpu))
