"""The verb lab review: what cannot be reviewed is said before anything starts."""

import pytest


@pytest.mark.parametrize(
    ("gate", "words"), [("nothing", "no gate"), ("kv_dtype=auto,fp8,bf16", "two values"), ("sinks=a,b", "switch")]
)
def test_what_is_no_gate_with_two_sides_is_refused(run, tmp_path, gate, words):
    result = run("lab", "review", gate, "--out", str(tmp_path / "out"))
    assert words in str(result.exception) and not (tmp_path / "out").exists()
