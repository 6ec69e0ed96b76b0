"""Level 6: the choice of gates, and the effect of a crashed cell."""

from dataclasses import replace

import pytest

from firesteel.errors import UserError
from firesteel.lab.levels import matrix as levels_matrix
from firesteel.lab.levels.matrix import choose_default_gates, run_matrix_level
from firesteel.lab.matrix.gates import parse_gates
from firesteel.lab.matrix.result import DONE, CellOutcome, Matrix, summarise
from firesteel.lab.spec import LabSpec
from firesteel.lab.spec_check import check_spec
from firesteel.lab.verdict import Verdict
from tests.lab.contexts import make_context


def outcome(statuses):
    cells = [
        CellOutcome(gates={"a": str(number)}, status=DONE, verdict=Verdict.PASSED, unranked="")
        if status == DONE
        else replace(CellOutcome.failed(status, "so"), gates={"a": str(number)})
        for number, status in enumerate(statuses)
    ]
    return summarise(Matrix(gates={}), cells)


def run(monkeypatch, tmp_path, statuses, **fields):
    seen = []

    def run_matrix(matrix, folder, on_progress):
        seen.append(matrix)
        return outcome(statuses)

    monkeypatch.setattr(levels_matrix, "run_matrix", run_matrix)
    return run_matrix_level(make_context(spec=LabSpec(**fields), folder=tmp_path)), seen


def test_quick_matrix_is_two_by_two_with_one_run_each(monkeypatch, tmp_path):
    result, [matrix] = run(monkeypatch, tmp_path, ["done"] * 4, quick=True, flags=("--tile", "auto"))
    assert (
        result.passed and len(matrix.cells()) == 4 and matrix.plan.runs == 1 and matrix.flags == ("--tile", "auto")
    )


def test_crashed_cell_fails_the_level_with_its_reason(monkeypatch, tmp_path):
    result, _ = run(monkeypatch, tmp_path, ["done", "crashed"])
    assert not result.passed and "a=1: so" in result.reason


def test_cells_of_an_earlier_run_are_removed(monkeypatch, tmp_path):
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "old.json").write_text("{}")
    run(monkeypatch, tmp_path, ["done"])
    assert not (tmp_path / "cells").exists()


def test_other_engines_need_named_gates(monkeypatch, tmp_path):
    result, seen = run(monkeypatch, tmp_path, ["done"], engine="vllm")
    assert result.verdict is Verdict.NOT_APPLICABLE and not seen
    result, [matrix] = run(monkeypatch, tmp_path, ["done"] * 2, engine="vllm", gates=("enforce-eager",))
    assert result.passed and matrix.cells() == [{"enforce-eager": "with"}, {"enforce-eager": "without"}]


def test_server_that_was_running_already_has_no_cells(monkeypatch, tmp_path):
    result, seen = run(monkeypatch, tmp_path, ["done"], url="http://x:1")
    assert (
        result.verdict is Verdict.NOT_APPLICABLE and not seen and "http://x:1 is running already" in result.reason
    )


def test_cells_get_the_requested_limits_and_debugging(monkeypatch, tmp_path):
    given = {
        "debug": True,
        "ready_s": 7200.0,
        "answer_s": 5.0,
        "grace_s": 1.0,
        "keep_going": True,
        "expect": "kv=fp8",
        "formats": "kv=fp8",
    }
    given |= {"path": "bf16", "reference_url": "http://x"}
    _, [matrix] = run(monkeypatch, tmp_path, ["done"], **given)
    assert {name: getattr(matrix, name) for name in given} == given
    assert matrix.cell_s > 7200.0  # its server may take that long to start


def test_every_default_gate_exists():
    for spec in (LabSpec(), LabSpec(quick=True)):
        for on_gpu in (False, True):
            assert parse_gates(choose_default_gates(spec, on_gpu=on_gpu))


def test_answers_with_drafts_are_a_gate_on_a_cpu_unless_the_server_has_drafts_of_its_own():
    assert "speculate=off,ngram" in choose_default_gates(LabSpec(), on_gpu=False)
    for flags in (("--speculate", "eagle3"), ("--draft-model=head",), ("--speculative-config", "{}")):
        assert "speculate=off,ngram" not in choose_default_gates(LabSpec(flags=flags), on_gpu=False)


def test_gates_file_replaces_the_default_gates_and_is_joined_by_named_ones(monkeypatch, tmp_path):
    path = tmp_path / "matrix.toml"
    path.write_text('flags = ["--a"]\n[environment]\nVLLM_A = "1"\n[[configuration]]\nname = "x"\nflags = ["--b"]')
    _, [matrix] = run(monkeypatch, tmp_path, ["done"], gates_file=str(path), flags=("--c",))
    assert matrix.cells() == [{"configuration": "x"}] and matrix.flags == ("--a", "--c")
    assert matrix.environment == {"VLLM_A": "1"} and matrix.configurations[0].flags == ("--b",)
    _, [matrix] = run(monkeypatch, tmp_path, ["done"], gates_file=str(path), gates=("kv_dtype=auto,fp8",))
    assert matrix.cells() == [{"configuration": "x", "kv_dtype": value} for value in ("auto", "fp8")]


def test_cell_without_a_proven_path_leaves_the_level_unproven(monkeypatch, tmp_path):
    cell = CellOutcome(status=DONE, gates={"a": "1"}, unranked="sinks unseen", reason="sinks unseen")
    monkeypatch.setattr(levels_matrix, "run_matrix", lambda *_, **__: summarise(Matrix(gates={}), [cell]))
    result = run_matrix_level(make_context(spec=LabSpec(), folder=tmp_path))
    assert result.verdict is Verdict.UNPROVEN and "a=1: sinks unseen" in result.reason


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"gates": ("VLLM_X=1,2",)}, "env:VLLM_X"),
        ({"gates": ("env:FIRESTEEL_VLLM=on,off",), "engine": "vllm"}, "cannot be varied"),
        ({"gates_file": "nowhere.toml"}, "cannot be read"),
        ({"gates_file": "x.toml", "url": "http://x:1"}, "needs its own server"),
    ],
)
def test_wrong_gates_are_refused_before_a_server_starts(fields, error):
    with pytest.raises(UserError, match=error):
        check_spec(LabSpec(level="6", **fields))
