"""The verb `lab compare`: its table, JSON and exit code."""

import copy
import json

import pytest

ROW = {
    "workload": {"pp": 512, "tg": 32},
    "series": {"tg_tok_s": {"unit": "tok/s", "better": "higher", "values": [50.0, 50.1, 49.9]}},
}


@pytest.fixture
def results(tmp_path):
    """(before, after) files; after is 5 % slower."""
    before = {"rows": [ROW], "usage": None}
    after = copy.deepcopy(before)
    after["rows"][0]["series"]["tg_tok_s"]["values"] = [47.5, 47.6, 47.4]
    paths = [tmp_path / "before.json", tmp_path / "after.json"]
    for path, content in zip(paths, (before, after), strict=True):
        path.write_text(json.dumps(content))
    return [str(path) for path in paths]


def test_slower_result_exits_with_one(run, results):
    result = run("lab", "compare", *results)
    assert result.exit_code == 1 and "slower" in result.stdout and "-5.0%" in result.stdout
    assert run("lab", "compare", results[0], results[0]).exit_code == 0


def test_runs_that_cannot_show_the_threshold_exit_with_three(run, results, tmp_path):
    noisy = copy.deepcopy({"rows": [ROW]})
    noisy["rows"][0]["series"]["tg_tok_s"]["values"] = [50.0, 70.0, 40.0]
    (tmp_path / "noisy.json").write_text(json.dumps(noisy))
    result = run("lab", "compare", results[0], str(tmp_path / "noisy.json"))
    assert result.exit_code == 3 and "cannot show a change of 3 %" in result.stderr


def test_threshold_is_a_setting(run, results):
    assert run("lab", "compare", *results, "--slower", "6").exit_code == 0


def test_json_holds_rows_and_regressions(run, results):
    content = json.loads(run("lab", "compare", *results, "--json").stdout)
    assert content["regressions"] and content["rows"][0]["verdict"] == "slower"


def test_result_of_another_kernel_path_is_refused(run, results, tmp_path):
    level = {"level": "4", "passed": True, "valid": False, "figures": {"bench": {"rows": [ROW]}}}
    gate = {"level": "1.5", "passed": False, "valid": True, "reason": "kernels: marlin ran", "figures": {}}
    (tmp_path / "bad.json").write_text(json.dumps({"levels": [gate, level]}))
    result = run("lab", "compare", results[0], str(tmp_path / "bad.json"))
    assert result.exit_code and "marlin ran" in str(result.exception)
