"""Results are found at any depth; files that cannot be read are named with the reason."""

import json

import pytest

from firesteel.errors import UserError
from firesteel.lab.board.collect import collect_results
from firesteel.lab.verdict import Verdict
from tests.lab import report_parts as parts
from tests.lab.board_results import bench_of, write_result


def test_every_result_is_found_once(tmp_path, monkeypatch):
    path = write_result(tmp_path, "deep/er/run", 50.0)
    path.with_name("report.html").write_text("")
    write_result(tmp_path, "other", 40.0)
    monkeypatch.chdir(tmp_path)
    found = collect_results([tmp_path, tmp_path / "deep", path])
    assert sorted(entry.path for entry in found.entries) == ["deep/er/run/result.json", "other/result.json"]
    assert [bool(entry.report) for entry in found.entries] == [True, False]


def test_unreadable_files_are_named_with_the_reason(tmp_path):
    for name, text in {"torn": "{", "list": "[]", "wrong": '{"bench": {"rows": 3}}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(text)
    found = collect_results([tmp_path])
    reasons = {path.split("/")[-2]: why for path, why in found.unreadable.items()}
    assert "is not valid JSON" in reasons["torn"] and "list, not an object" in reasons["list"]
    assert "bench of the result cannot be read" in reasons["wrong"] and not found.entries


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        collect_results([tmp_path / "nowhere"])


def test_results_without_a_speed_are_listed(tmp_path):
    write_result(tmp_path, "verified", levels=[parts.level("1")])
    assert [path.split("/")[-2] for path in collect_results([tmp_path]).without_speed] == ["verified"]


@pytest.fixture
def cells(tmp_path):
    """cells(outcome): the entries of a matrix with one cell."""

    def collect(**outcome):
        folder = tmp_path / "cells"
        folder.mkdir(exist_ok=True)
        matrix = {"gates": {"env:A": ["1"]}, "engine": "vllm", "model": "openai/gpt-oss-120b"}
        (folder / "matrix.json").write_text(json.dumps(matrix))
        content = {"status": "done", "gates": {"env:A": "1"}, "device": "NVIDIA GB10", **outcome}
        (folder / "A=1.json").write_text(json.dumps(content))
        return collect_results([tmp_path]).entries

    return collect


def test_cell_of_an_earlier_version_is_not_judged(cells):
    [entry] = cells(bench=bench_of(50.0))
    assert entry.verdict is Verdict.UNPROVEN and "earlier version" in entry.fault
    assert entry.settings == ("env:A=1",) and entry.headline["tg_tok_s"].value == 50.0


def test_crashed_cell_says_why(cells):
    [entry] = cells(status="crashed", reason="killed by SIGSEGV")
    assert entry.verdict is Verdict.FAILED and entry.fault == "crashed: killed by SIGSEGV"


def test_cell_that_is_a_run_is_its_result(cells, tmp_path):
    write_result(tmp_path / "cells", "A=1", 50.0)
    [entry] = cells(bench=bench_of(50.0))
    assert entry.is_ranked and entry.path.endswith("A=1/result.json")
