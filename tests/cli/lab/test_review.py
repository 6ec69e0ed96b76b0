"""The verb `lab review`: invalid gates are refused before anything starts."""

import pytest


@pytest.mark.parametrize(
    ("gate", "words"),
    [("nothing", "no gate"), ("kv_dtype=auto,fp8,bf16", "two values"), ("sinks=a,b", "on and off")],
)
def test_gate_without_two_valid_values_is_refused(run, tmp_path, gate, words):
    result = run("lab", "review", gate, "--out", str(tmp_path / "out"))
    assert words in str(result.exception) and not (tmp_path / "out").exists()
