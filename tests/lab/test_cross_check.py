"""The run with a profiler: which flags it takes over, and what it says of a failure."""

import pytest

from firesteel.lab.cross_check import cross_check, model_flags


def test_flags_of_the_model_are_kept_and_those_of_the_server_dropped():
    flags = [
        "--tile",
        "64x128",
        "--port",
        "9",
        "--no-sinks",
        "--require=moe=triton",
        "--enforce-eager",
        "--log-prompts",
    ]
    assert model_flags(flags) == ["--tile", "64x128", "--no-sinks", "--require=moe=triton", "--enforce-eager"]


@pytest.mark.slow
def test_failure_is_told_and_the_output_kept(tmp_path):
    words = cross_check("no/such-model", [], tmp_path)
    assert "not a folder" in words and "not a folder" in (tmp_path / "cross-check.txt").read_text()
