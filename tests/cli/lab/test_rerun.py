"""The verb `lab rerun`: prints the command and runs it."""

import json

import pytest

from firesteel.lab.matrix.result import Matrix, summarise


@pytest.mark.slow
def test_record_is_rerun(run, start, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"surroundings": {"command": ["firesteel", "env"], "device": "elsewhere"}}))
    result = run("lab", "rerun", str(path), "--dry")
    assert result.exit_code == 0 and result.stdout.strip() == "firesteel env"
    assert "device: elsewhere before" in result.stderr
    again = start("lab", "rerun", str(path))
    assert again.returncode == 0 and again.stdout.startswith("firesteel env\n"), again.stderr
    assert "FIRESTEEL_MODEL" in again.stdout


def test_dry_rerun_of_a_matrix_prints_its_gates_and_writes_nothing(run, tmp_path):
    path, out = tmp_path / "result.json", tmp_path / "again"
    content = summarise(Matrix(gates={"env:VLLM_X": ("1,2", "3")}, engine="vllm"), []).as_dict()
    path.write_text(json.dumps({"matrix": content}))
    result = run("lab", "rerun", str(path), "--out", str(out), "--dry")
    assert result.exit_code == 0 and f"--gates-file {out / 'gates.toml'}" in result.stdout
    assert '"env:VLLM_X" = ["1,2", "3"]' in result.stdout and not out.exists()


@pytest.mark.slow
def test_exit_code_is_that_of_the_command(start, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"surroundings": {"command": ["firesteel", "roofline", "--gpu", "tpu"]}}))
    assert start("lab", "rerun", str(path)).returncode == 2
