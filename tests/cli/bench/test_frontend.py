"""`bench frontend`: every token counted, a record saved, an error if the front end is too slow."""

import json

import pytest

from firesteel.measure.record import Record

FLAGS = ("--concurrency", "3", "--max-tokens", "40", "--rounds", "2")


@pytest.mark.slow
def test_every_token_arrives_and_a_record_is_saved(run, tmp_path):
    result = run("bench", "frontend", *FLAGS, "--rate", "200", "--out", str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert 150 < shown["tok_s"] < 250 and 0 < shown["core_share"] < 1 and 0 < shown["chunks_a_token"] <= 1
    [record] = [Record.load(path) for path in tmp_path.glob("*.json")]
    assert (record.name, record.unit, len(record.samples)) == ("frontend", "tok/s", 2)
    assert record.parameters["concurrency"] == 3 and record.parameters["rate_tok_s"] == 200


@pytest.mark.slow
def test_front_end_that_is_too_slow_is_an_error(run, tmp_path):
    result = run("bench", "frontend", *FLAGS, "--rate", "1e9", "--out", str(tmp_path))
    assert result.exit_code == 1 and "did not keep up" in result.stderr and "us per token" in result.stdout
