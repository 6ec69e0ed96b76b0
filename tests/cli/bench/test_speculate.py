"""`bench speculate`: rows, records, tables, and the errors for unsuitable options."""

import json

import pytest

from firesteel import UserError
from firesteel.measure.record import Record
from firesteel.measure.speculate import bench as speculate_bench
from firesteel.measure.speculate import runs
from firesteel.model.spec import PRESETS
from tests.conftest import TINY

SMALL = ["--device", "cpu", "--page-size", "8", "--memory-reserve-gib", "0", "--steps", "3", "--rows", "3"]


@pytest.fixture
def bench(run, checkpoint, tmp_path):
    def invoke(*flags, **environment):
        return run("bench", "speculate", str(checkpoint), *SMALL, "--out", str(tmp_path), *flags, **environment)

    return invoke


def test_each_case_has_a_row_and_a_record(bench, tmp_path):
    result = bench("--requests", "1,2", "--context", "12,40", "--acceptance", "0.5,1", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    cases = [(context, requests, count) for context in (12, 40) for requests in (1, 2) for count in (1, 2, 3)]
    assert [(row["context"], row["requests"], row["rows"]) for row in rows] == cases
    plain = {(row["context"], row["requests"]): row["ms_a_step"] for row in rows if row["rows"] == 1}
    for row in rows:
        assert row["way"] == "network, eager" and row["steps"] == 3
        if row["rows"] == 1:
            assert "cost_in_steps" not in row and row["predicted_cost"] == 1
            continue
        cost = row["ms_a_step"] / plain[row["context"], row["requests"]]
        assert row["cost_in_steps"] == pytest.approx(cost) and row["drafted"] == row["rows"] - 1
        half, whole = row["speeds"]
        assert (half["acceptance"], whole["length"]) == (0.5, row["rows"])
        assert whole["speedup"] == pytest.approx(row["rows"] / cost)
        assert 1 < row["predicted_cost"] < row["rows"]
    records = {record.name: record for record in map(Record.load, tmp_path.glob("*.json"))}
    assert set(records) == {f"verify {count} rows of {requests} at {context}" for context, requests, count in cases}
    record = records["verify 3 rows of 2 at 40"]
    assert record.unit == "ms" and len(record.samples) == 3 and record.kernels["linear"] == "reference"
    assert record.parameters == {"model": record.parameters["model"], **rows[-1]}


def test_tables_show_cost_break_even_and_speeds(bench):
    result = bench("--requests", "2", "--context", "12", "--acceptance", "1", "--draft-ms", "0.25", COLUMNS="300")
    assert result.exit_code == 0, result.output
    assert "break-even acceptance" in result.stdout and "drafting takes 0.25 ms per token" in result.stdout
    assert "at 1" in result.stdout and "(3.00, " in result.stdout


def test_case_that_fails_is_a_row_and_not_the_end(bench, monkeypatch):
    measure = speculate_bench.measure

    def refuse_two(case, subject, steps):
        if case.rows == 2:
            raise UserError("no room")
        return measure(case, subject, steps)

    monkeypatch.setattr(speculate_bench, "measure", refuse_two)
    result = bench("--requests", "1", "--context", "12", "--json")
    assert result.exit_code == 1
    rows = json.loads(result.stdout)
    assert rows[1] == {"requests": 1, "rows": 2, "context": 12, "not_measured": "no room"}
    assert rows[2]["cost_in_steps"] > 0 and "1 x 2 rows at 12 tokens were not measured" in result.stderr


def test_without_a_plain_step_there_is_no_gain(bench, monkeypatch):
    measure = speculate_bench.measure

    def refuse_one(case, subject, steps):
        if case.rows == 1:
            raise UserError("no room")
        return measure(case, subject, steps)

    monkeypatch.setattr(speculate_bench, "measure", refuse_one)
    result = bench("--requests", "1", "--context", "12")
    assert result.exit_code == 1 and "break-even" in result.stdout


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    monkeypatch.setattr(runs, "ROUNDS", 1)


def test_engine_is_measured_with_and_without_drafts(run, tiny, tmp_path):
    flags = ["--synthetic", "tiny", *SMALL, "--steps", "12", "--engine", "--requests", "1", "--context", "9"]
    result = run(
        "bench", "speculate", *flags, "--no-adapt-speculation", "--acceptance", "1", "--out", str(tmp_path)
    )
    assert result.exit_code == 0, result.output + str(result.exception)
    assert "no drafts" in result.stdout and "always as many as possible" in result.stdout
    records = {record.parameters["acceptance"]: record for record in map(Record.load, tmp_path.glob("*.json"))}
    assert set(records) == {None, 1.0} and all(record.unit == "tok/s" for record in records.values())
    assert records[None].parameters["tokens_a_step"] == 1 and records[1.0].parameters["tokens_a_step"] > 2
    assert records[1.0].config["speculate"]["num_speculative_tokens"] == 2


def test_engine_tells_why_it_drafted_or_did_not(run, tiny, tmp_path):
    """A run on a GPU drafted nothing, and did not say why."""
    flags = ["--synthetic", "tiny", *SMALL, "--steps", "40", "--engine", "--requests", "1", "--context", "9"]
    result = run("bench", "speculate", *flags, "--acceptance", "0", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output + str(result.exception)
    assert "what the choices were made from" in result.stdout and "no gain expected" in result.stdout
    told = {
        record.parameters["acceptance"]: record.parameters["policy"]
        for record in map(Record.load, tmp_path.glob("*.json"))
    }
    assert told[None] is None and told[0.0]["choices"]["no gain expected"] > 0
    assert told[0.0]["accepted_up_to"]["0"][0] < 0.8 and told[0.0]["plain_ms"] > 0


@pytest.mark.parametrize("flags", [("--speculate", "eagle3"), ("--num-speculative-tokens", "1")], ids=str)
def test_engine_refuses_drafts_that_it_would_replace(run, tiny, flags):
    """Simulated drafts took their place without a word."""
    result = run("bench", "speculate", "--synthetic", "tiny", *SMALL, "--engine", *flags)
    assert f"{' '.join(flags)}: --engine simulates the drafts" in str(result.exception)


def test_engine_needs_random_weights(run, checkpoint):
    result = run("bench", "speculate", str(checkpoint), *SMALL, "--engine")
    assert "give --synthetic" in str(result.exception)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--context", "100000"], "lower --context"),
        (["--acceptance", "0.5,1.5"], "from 0 to 1, got '1.5'"),
        (["--requests", "0"], "--requests 0"),
        (["--synthetic", "gpt-oss-20b"], "name the model once"),
        (
            ["--context", "12", "--kernels", "decode_o=reference"],
            "decode_o=reference: decode ops run on a GPU only",
        ),
    ],
)
def test_unsuitable_options_are_refused(bench, flags, words):
    result = bench(*flags)
    assert result.exit_code != 0 and words in str(result.exception) + result.output


def test_cpu_must_be_named(run, checkpoint):
    result = run("bench", "speculate", str(checkpoint), FIRESTEEL_DEVICE="auto")
    assert "bench speculate times CUDA kernels" in str(result.exception)
