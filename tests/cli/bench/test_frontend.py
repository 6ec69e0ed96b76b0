"""The verb bench frontend: it counts every token, keeps a record, and says when the front end is too slow."""

import json

import pytest

from firesteel.cli.bench.frontend import summarise
from firesteel.measure.record import Record
from firesteel.server.stub.clients import Visit

FLAGS = ("--concurrency", "3", "--max-tokens", "40", "--rounds", "2")


@pytest.mark.slow
def test_every_token_arrives_and_a_record_is_kept(run, tmp_path):
    result = run("bench", "frontend", *FLAGS, "--rate", "200", "--out", str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert 150 < shown["tok_s"] < 250 and 0 < shown["core_share"] < 1 and 0 < shown["chunks_a_token"] <= 1
    [record] = [Record.load(path) for path in tmp_path.glob("*.json")]
    assert (record.name, record.unit, len(record.samples)) == ("frontend", "tok/s", 2)
    assert record.parameters["concurrency"] == 3 and record.parameters["rate_tok_s"] == 200


@pytest.mark.slow
def test_too_slow_is_an_error(run, tmp_path):
    result = run("bench", "frontend", *FLAGS, "--rate", "1e9", "--out", str(tmp_path))
    assert result.exit_code == 1 and "did not keep up" in result.stderr and "us a token" in result.stdout


def test_rates_are_over_the_whole_time():
    visits = [Visit(1.0, 3.0, 10, 500), Visit(2.0, 5.0, 10, 500)]
    found = summarise(visits, cpu_s=1.0, max_tokens=10)
    assert (found.tok_s, found.core_share, found.us_a_token) == (5.0, 0.25, 50_000.0)
    assert (found.chunks_a_token, found.bytes_a_token) == (1.0, 50.0)
