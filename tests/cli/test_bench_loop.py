"""The verb bench decode --engine: rows, records, and what it refuses."""

import json
import sys

import pytest
import torch

from firesteel.config import resolve
from firesteel.measure.record import Record

bench_loop = sys.modules["firesteel.cli.bench_loop"]
SMALL = [
    "--device",
    "cpu",
    "--page-size",
    "8",
    "--memory-reserve-gib",
    "0",
    "--steps",
    "12",
    "--kv-cache-gib",
    "0.01",
]


@pytest.fixture
def bench(run, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_loop, "BARE_STEPS", 3)
    monkeypatch.setattr(bench_loop, "EXPERT_STEPS", 2)

    def invoke(*flags):
        return run("bench", "decode", str(checkpoint), "--engine", *SMALL, "--out", str(tmp_path), *flags)

    return invoke


def test_each_batch_and_context_has_a_row_and_a_record(bench, tmp_path, llm):
    result = bench("--batch", "1,3,9", "--context", "5", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["batch"] for row in rows] == [1, 3, 9]
    for row in rows:
        assert row["tokens"] == 11 * row["batch"], "the first token of each came with its prompt"
        assert row["tok_s"] == pytest.approx(1e3 * row["batch"] / row["ms_a_step"])
        assert row["share_of_bare_replay"] == pytest.approx(row["bare_ms_a_step"] / row["ms_a_step"])
        assert 0 < row["idle_share"] < 1 and row["reread"]["likeliest_share"] == 1 and row["captured"] is False
        assert len(row["experts"]["distinct_by_layer"]) == llm.spec.num_layers
        assert 0 < row["startup"]["first_token_s"] < row["startup"]["second_token_s"]
    records = {record.parameters["batch"]: record for record in map(Record.load, tmp_path.glob("*.json"))}
    assert sorted(records) == [1, 3, 9] and records[9].name == "engine decode batch 9 context 5"
    assert len(records[3].samples) == 10 and records[3].unit == "ms"
    assert records[3].parameters["run_ahead_steps"] == 0 and records[3].config["cache"]["prefix_caching"] is False


def test_tokens_can_be_drawn_and_are_then_not_read_again(bench, run, checkpoint):
    [row] = json.loads(bench("--batch", "3", "--context", "5", "--temperature", "1", "--json").stdout)
    assert row["reread"] is None and row["temperature"] == 1 and row["tokens"] == 33
    assert row["experts"]["tokens"] == 3
    refused = run("bench", "decode", str(checkpoint), "--temperature", "1", "--device", "cpu")
    assert "add --engine" in str(refused.exception)


def test_table_says_what_start_up_took(bench):
    result = bench("--context", "5")
    assert result.exit_code == 0, result.output
    assert "of bare replay" in result.output and "to the first token" in " ".join(result.output.split())


def test_wrong_tokens_are_an_error(bench, monkeypatch):
    plain = bench_loop.read_again
    monkeypatch.setattr(
        bench_loop, "read_again", lambda engine, requests, tokens: plain(engine, requests, {"0": [5] * 12})
    )
    result = bench("--context", "5")
    assert result.exit_code == 1 and "the tokens are wrong" in result.output


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--context", "250"], "exceed the context of 256"),
        (["--batch", "65", "--max-num-seqs", "64"], "max_num_seqs = 64"),
        (["--batch", "60", "--context", "200", "--kv-cache-gib", "0.002"], "raise --kv-cache-gib"),
        (["--batch", "0"], "--batch 0"),
        (["--context", "0"], "--context 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(bench, flags, message):
    result = bench(*flags)
    assert result.exit_code != 0 and message in str(result.exception) + result.output


def test_bare_replays_begin_half_way_in_the_step_that_ran_there(checkpoint):
    config = resolve({"model": str(checkpoint), "device": "cpu", "memory_reserve_gib": 0.0}).config
    _, loaded = bench_loop.open_model(config, None)
    timed = bench_loop.Timed(loaded, bench_loop._draw(loaded, 2, 10, 20))
    ready, begin = timed.run()
    with torch.inference_mode():
        ready.step.restore(begin)
    assert ready.step.num_requests == 2 and 17 <= int(ready.step.batch.kv_lens.max()) <= 24
