"""The verb bench engine: what it measures on a tiny model, and what it refuses."""

import json

import pytest

from firesteel import UserError
from firesteel.cli.bench_engine import draw_prompts, measure, parse_concurrency
from firesteel.config import BatchConfig, CacheConfig
from firesteel.engine.engine import Engine
from firesteel.measure.record import Record
from firesteel.model.spec import PRESETS


@pytest.fixture
def bench(run, checkpoint, tmp_path):
    def invoke(*flags):
        settings = ["--model", str(checkpoint), "--device", "cpu", "--memory-reserve-gib", "0"]
        settings += ["--kv-cache-gib", "0.02"]
        return run("bench", "engine", *settings, "--out", str(tmp_path), *flags)

    return invoke


def test_each_concurrency_has_a_row_and_a_record(bench, tmp_path):
    flags = (
        "--concurrency",
        "1,4",
        "--requests",
        "6",
        "--prompt-tokens",
        "9",
        "--max-tokens",
        "5",
        "--rounds",
        "2",
    )
    result = bench(*flags, "--json")
    assert result.exit_code == 0, result.output
    one, four = json.loads(result.stdout)
    assert (one["concurrency"], four["concurrency"]) == (1, 4)
    assert (one["steps"], four["steps"]) == (30, 10)
    for row in (one, four):
        assert min(row["prefill_tok_s"], row["decode_tok_s"], row["first_token_s"], row["token_s"]) > 0
        assert all(row[f"{stage}_ms_a_step"] > 0 for stage in ("schedule", "build", "run", "wait"))
    records = {record.parameters["concurrency"]: record for record in map(Record.load, tmp_path.glob("*.json"))}
    assert set(records) == {1, 4}
    found = records[4]
    assert (found.name, found.unit, len(found.samples), found.seed) == ("engine", "tok/s", 2, 0)
    assert found.median == four["output_tok_s"] and found.parameters["decode_tok_s"] == four["decode_tok_s"]
    shape = {"requests": 6, "prompt_tokens": 9, "max_tokens": 5}
    assert shape.items() <= found.parameters.items()
    assert found.config["cache"]["prefix_caching"] is False and found.kernels["linear"] == "reference"


def test_table_shows_rates_and_stages(bench):
    result = bench(
        "--concurrency", "2", "--requests", "2", "--prompt-tokens", "3", "--max-tokens", "2", "--rounds", "1"
    )
    assert result.exit_code == 0, result.output
    for heading in ("prefill tok/s", "decode tok/s", "scheduler ms", "batch ms", "model ms", "sample and wait ms"):
        assert heading in result.stdout
    assert "2 requests of 3 + 2 tokens on CPU" in result.stdout and "records are in" in result.stderr


def test_random_weights_of_a_preset_are_measured_under_its_name(run, tmp_path, monkeypatch, llm):
    monkeypatch.setitem(PRESETS, "gpt-oss-20b", llm.spec)
    flags = ["--synthetic", "gpt-oss-20b", "--device", "cpu", "--kv-cache-gib", "0.02", "--out", str(tmp_path)]
    shape = ["--concurrency", "2", "--requests", "2", "--prompt-tokens", "3", "--max-tokens", "2", "--rounds", "1"]
    result = run("bench", "engine", *flags, *shape)
    assert result.exit_code == 0, result.output
    (found,) = map(Record.load, tmp_path.glob("*.json"))
    assert found.parameters["model"] == "gpt-oss-20b, random weights"
    bad = run("bench", "engine", "--synthetic", "gpt-oss-7b")
    assert isinstance(bad.exception, UserError) and "must be one of gpt-oss-120b, gpt-oss-20b" in str(bad.exception)


def test_no_more_requests_are_in_flight_than_asked_for(llm):
    """With one at a time every step serves one; a prompt's step is prefill, all others decode."""
    engine = Engine(
        llm.model, llm.device, BatchConfig(page_size=4), CacheConfig(kv_cache_gib=0.01), max_context=llm.max_context
    )
    prompts = draw_prompts(3, 7, 272)
    found = measure(engine, prompts, 1, max_tokens=4)
    assert found.steps == 12 and engine.totals.largest_step_requests == 1
    found = measure(engine, prompts, 2, max_tokens=4)
    assert engine.totals.largest_step_requests == 2 and found.steps == 8
    assert sum(found.stages_s.values()) > 0 and not engine.has_work


def test_prompts_are_the_same_each_time_and_differ_from_each_other():
    prompts = draw_prompts(20, 8, 272)
    assert prompts == draw_prompts(20, 8, 272) and len(set(map(tuple, prompts))) == 20
    assert all(0 <= token < 272 for prompt in prompts for token in prompt)


def test_concurrency_is_a_list_of_numbers():
    assert parse_concurrency("1, 16,1") == [1, 16]
    for bad in ("", "0", "1,,2", "-1", "x", "1.5", "²"):
        with pytest.raises(UserError, match="wants numbers from 1 on"):
            parse_concurrency(bad)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--concurrency", "9", "--max-num-seqs", "8"], "--concurrency 9: max_num_seqs = 8"),
        (["--prompt-tokens", "250", "--max-tokens", "9"], "259 tokens a request exceed the context of 256"),
    ],
)
def test_what_the_engine_could_not_hold_is_refused(bench, flags, message):
    result = bench(*flags)
    assert isinstance(result.exception, UserError) and message in str(result.exception)
