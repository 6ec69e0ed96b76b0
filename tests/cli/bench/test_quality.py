"""`bench quality`: rows, records, and the errors for unsuitable options."""

import json
import weakref

import pytest

from firesteel import UserError
from firesteel.cli.model import load as model_load
from firesteel.exam import read_items
from firesteel.measure.record import Record
from firesteel.quality import MEASURED, PRECISIONS


@pytest.fixture
def bench(run, tmp_path, monkeypatch):
    monkeypatch.setattr("firesteel.exam.read_items", lambda path: read_items(path)[:2])

    def invoke(*flags):
        return run("bench", "quality", "--device", "cpu", "--out", str(tmp_path), *flags)

    return invoke


@pytest.mark.slow
def test_each_precision_has_a_row_and_a_record(bench, tmp_path):
    result = bench("--json", "--limit", "1")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["precision"] for row in rows] == list(MEASURED)
    assert rows[0]["perplexity_change"] == rows[0]["changed"] == 0
    assert len({row["perplexity"] for row in rows}) == len(MEASURED)
    records = [Record.load(path) for path in tmp_path.glob("quality--*.json")]
    assert {record.parameters["precision"]: record.median for record in records} == {
        row["precision"]: row["perplexity"] for row in rows
    }
    kernels = {record.parameters["precision"]: record.config["kernels"] for record in records}
    for name in MEASURED:
        assert PRECISIONS[name].items() <= kernels[name].items()
        assert kernels[name]["activation"] == PRECISIONS[name].get("activation", "bf16")


@pytest.mark.slow
def test_one_precision_is_compared_with_the_model_as_shipped(bench, rows_of):
    result = bench("--precision", "MXFP8 activations")
    assert result.exit_code == 0, result.output
    assert [row[0] for row in rows_of(result.stdout)] == ["as shipped", "MXFP8 activations"]
    assert "2 questions" in result.stdout and "kindling on CPU in float32" in result.stdout


@pytest.mark.slow
def test_a_model_is_freed_before_the_next_is_loaded(bench, monkeypatch):
    """Two copies of gpt-oss-120b do not fit into the memory of a GB10: once both were held."""
    load, models = model_load.load, []

    def load_alone(settings):
        assert not any(reference() for reference in models)
        llm = load(settings)
        models.append(weakref.ref(llm.model))
        return llm

    monkeypatch.setattr(model_load, "load", load_alone)
    result = bench("--precision", "all MXFP4", "--limit", "1")
    assert result.exit_code == 0, result.exception
    assert len(models) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--precision", "fp2"], "--precision fp2: must be one of as shipped; all MXFP4"),
        (["--activation", "mxfp8"], "--activation: bench quality sets it itself"),
        (["--mxfp4-layers", "o"], "--mxfp4-layers: bench quality sets it itself"),
        (
            ["--precision", "MXFP6 E2M3 activations", "--kernels", "linear=reference"],
            "--kernels: bench quality sets",
        ),
    ],
)
def test_settings_of_a_precision_are_refused(bench, flags, message):
    result = bench(*flags)
    assert isinstance(result.exception, UserError) and message in str(result.exception)
