"""The verb `lab review`: exit codes, and invalid gates that are refused before anything starts."""

import pytest

from firesteel.lab.compare.compare import Comparison
from firesteel.lab.matrix.review import Review


@pytest.mark.parametrize(
    ("gate", "words"),
    [("nothing", "no gate"), ("kv_dtype=auto,fp8,bf16", "two values"), ("sinks=a,b", "on and off")],
)
def test_gate_without_two_valid_values_is_refused(run, tmp_path, gate, words):
    result = run("lab", "review", gate, "--out", str(tmp_path / "out"))
    assert words in str(result.exception) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("verdict", "code"), [("accepted", 0), ("open", 3), ("rejected", 1), ("mixed", 1), ("no difference", 1)]
)
def test_only_an_accepted_gate_exits_with_0(run, tmp_path, monkeypatch, verdict, code):
    sheet = Review(gate="g", off="a", on="b", hypothesis="h", criteria=[], verdict=verdict, why="so", rounds=2)
    monkeypatch.setattr("firesteel.lab.matrix.review.review_gate", lambda *_, **__: (sheet, Comparison()))
    assert run("lab", "review", "kv_dtype=auto,fp8", "--out", str(tmp_path)).exit_code == code
