"""`bench agreement`: a row and a record per equality, and the errors for unsuitable options."""

import json

import pytest

from firesteel import UserError
from firesteel.measure.record import Record
from firesteel.measure.tokens.equalities import NAMES
from firesteel.model.spec import PRESETS

SMALL = ["--requests", "3", "--prompt-tokens", "20", "--max-tokens", "6", "--page-size", "4"]


@pytest.fixture
def bench(run, checkpoint, tmp_path):
    def invoke(*flags):
        settings = ["--model", str(checkpoint), "--device", "cpu", "--memory-reserve-gib", "0"]
        return run("bench", "agreement", *settings, "--out", str(tmp_path), *SMALL, *flags)

    return invoke


def test_each_equality_has_a_row_and_a_record(bench, tmp_path):
    result = bench("--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["equality"] for row in rows] == list(NAMES)
    assert all(row["token_share"] == row["request_share"] == 1.0 for row in rows)
    assert all(row["differences_a_token"] == 0 and row["largest_margin_nats"] is None for row in rows)
    records = {record.name: record for record in map(Record.load, tmp_path.glob("*.json"))}
    assert set(records) == {f"agreement {name}" for name in NAMES}
    batched = records["agreement batched = alone"]
    assert batched.samples == (1.0, 1.0, 1.0) and batched.unit == "share of tokens" and batched.seed == 0
    assert batched.parameters["tokens"] == 18 and batched.parameters["tokens_before"] == [6, 6, 6]
    assert batched.parameters["evidence"] == "3 at once" and batched.kernels["linear"] == "reference"


def test_table_shows_both_runs(bench, rows_of):
    result = bench()
    assert result.exit_code == 0, result.output
    rows = rows_of(result.stdout)
    assert [row[0] for row in rows] == list(NAMES)
    assert rows[1][1:6] == ["3 at once", "18", "100.00 %", "100.0 %", "-"]
    assert "3 requests of up to 20 + 6 tokens on CPU" in result.stdout and "records are in" in result.stderr


def test_random_weights_of_a_preset_are_measured_under_its_name(run, tmp_path, monkeypatch, llm):
    monkeypatch.setitem(PRESETS, "gpt-oss-20b", llm.spec)
    flags = ["--synthetic", "gpt-oss-20b", "--device", "cpu", "--out", str(tmp_path)]
    result = run("bench", "agreement", *flags, *SMALL)
    assert result.exit_code == 0, result.output
    assert Record.load(next(tmp_path.glob("*.json"))).parameters["model"] == "gpt-oss-20b, random weights"


@pytest.mark.slow
def test_equality_that_cannot_be_measured_is_listed_and_the_rest_is_kept(bench, tmp_path, rows_of):
    flags = ("--page-size", "64", "--max-tokens", "8")
    result, as_json = bench(*flags), bench(*flags, "--json")
    assert result.exit_code == as_json.exit_code == 3
    why = "no request was preempted: raise --max-tokens or --requests, or lower --page-size"
    assert f"preempted = undisturbed cannot be measured: {why}" in " ".join(result.stderr.split())
    rows = {row[0]: row for row in rows_of(result.stdout)}
    assert tuple(rows) == NAMES and rows["preempted = undisturbed"][1] == f"not measured: {why}"
    assert rows["same seed, batched = alone"][3] == "100.00 %"
    assert {"equality": "preempted = undisturbed", "why_not": why} in json.loads(as_json.stdout)
    names = {record.name for record in map(Record.load, tmp_path.glob("*.json"))}
    assert "agreement same seed, batched = alone" in names and "agreement preempted = undisturbed" not in names


def test_request_beyond_the_context_is_refused_before_weights_are_read(bench, monkeypatch):
    monkeypatch.setattr("firesteel.cli.bench.model.open_model", None)
    result = bench("--prompt-tokens", "252")
    assert isinstance(result.exception, UserError) and "258 tokens per request exceed" in str(result.exception)
