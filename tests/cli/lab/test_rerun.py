"""The verb `lab rerun`: prints the command and runs it."""

import json

import pytest


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


@pytest.mark.slow
def test_exit_code_is_that_of_the_command(start, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"surroundings": {"command": ["firesteel", "roofline", "--gpu", "tpu"]}}))
    assert start("lab", "rerun", str(path)).returncode == 2
