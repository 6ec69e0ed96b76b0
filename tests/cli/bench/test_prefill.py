"""`bench prefill`: rows, records, and the errors for unsuitable options."""

import json
from dataclasses import replace

import pytest

from firesteel.config import BatchConfig
from firesteel.device import GIB, find_device
from firesteel.engine.limits import find_budget
from firesteel.measure.record import Record


@pytest.fixture
def bench(run, checkpoint, tmp_path):
    def invoke(*flags):
        settings = ["--model", str(checkpoint), "--device", "cpu", "--memory-reserve-gib", "0", "--rounds", "3"]
        return run("bench", "prefill", *settings, "--kv-cache-gib", "0.01", "--out", str(tmp_path), *flags)

    return invoke


def test_each_length_has_a_row_and_a_record(bench, tmp_path):
    result = bench("--tokens", "16,100", "--max-num-batched-tokens", "40", "--json")
    assert result.exit_code == 0, result.output
    short, long = json.loads(result.stdout)
    assert (short["tokens"], short["steps"], long["tokens"], long["steps"]) == (16, 1, 100, 3)
    assert long["tok_s"] == pytest.approx(1e3 * 100 / long["ms"])
    records = {record.parameters["tokens"]: record for record in map(Record.load, tmp_path.glob("*.json"))}
    assert len(records[100].samples) == 3 and records[100].unit == "ms" and records[100].warmups == 2
    assert records[100].name == "engine prefill 100"
    assert long["load_s"] == records[100].startup_s > 0


def test_no_prompt_is_cached_even_if_caching_is_on(bench):
    result = bench("--tokens", "70,40,140", "--prefix-caching", "--page-size", "4")
    assert result.exit_code == 0, result.output


def test_prompt_of_the_default_budget_takes_one_step(bench):
    result = bench("--tokens", "250", "--json")
    assert json.loads(result.stdout)[0]["steps"] == 1
    gpu = replace(find_device("cpu"), capability=(9, 0), memory_bytes=139 * GIB)
    assert find_budget(BatchConfig(), gpu) == 8192, "the longest prompt measured by default"


def test_table_has_medians(bench):
    result = bench("--tokens", "16")
    assert result.exit_code == 0 and "medians of 3 prompts" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tokens", "256"], "exceed the context of 256"),
        (["--tokens", "x"], "--tokens x"),
        (["--tokens", "250", "--page-size", "16", "--kv-cache-gib", "0.0002"], "pages, the cache has"),
    ],
)
def test_unsuitable_options_are_refused(bench, flags, message):
    result = bench(*flags)
    assert result.exit_code != 0 and message in str(result.exception) + result.output
