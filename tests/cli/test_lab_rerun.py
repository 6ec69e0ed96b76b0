"""The verb lab rerun: the command is said, and run."""

import json

import pytest


@pytest.mark.slow
def test_a_record_is_run_again(run, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"surroundings": {"command": ["firesteel", "env"], "device": "elsewhere"}}))
    result = run("lab", "rerun", str(path), "--dry")
    assert result.exit_code == 0 and result.stdout.strip() == "firesteel env"
    assert "device: elsewhere before" in result.stderr
    assert run("lab", "rerun", str(path)).exit_code == 0


@pytest.mark.slow
def test_the_exit_code_is_the_commands(run, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"surroundings": {"command": ["firesteel", "roofline", "--gpu", "tpu"]}}))
    assert run("lab", "rerun", str(path)).exit_code == 2
