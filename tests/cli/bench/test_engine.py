"""The verb bench engine: what it measures on a tiny model, and what it refuses."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from firesteel import UserError
from firesteel.cli.bench.engine import check_pages, is_rounded, measure, parse_concurrency, run_level
from firesteel.config import BatchConfig, CacheConfig, resolve
from firesteel.engine.engine import Engine
from firesteel.measure.record import Record
from firesteel.measure.tokens.runs import draw_requests
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import PRESETS
from firesteel.types import SamplingParams

bench_engine = sys.modules["firesteel.cli.bench.engine"]
SMALL = ["--concurrency", "2", "--requests", "2", "--prompt-tokens", "3", "--max-tokens", "2", "--rounds", "1"]


@pytest.fixture
def bench(run, checkpoint, tmp_path):
    def invoke(*flags):
        settings = ["--model", str(checkpoint), "--device", "cpu", "--memory-reserve-gib", "0"]
        settings += ["--kv-cache-gib", "0.02"]
        return run("bench", "engine", *settings, "--out", str(tmp_path), *flags)

    return invoke


def draw(count, max_tokens):
    return draw_requests([7] * count, SamplingParams(max_tokens=max_tokens), 272, seed=0)


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
    result = bench(*SMALL)
    assert result.exit_code == 0, result.output
    for heading in ("prefill tok/s", "decode tok/s", "scheduler ms", "batch ms", "model ms", "sample and wait ms"):
        assert heading in result.stdout
    assert "2 requests of 3 + 2 tokens on CPU" in result.stdout and "records are in" in result.stderr


def test_random_weights_of_a_preset_are_measured_under_its_name(run, tmp_path, monkeypatch, llm):
    monkeypatch.setitem(PRESETS, "gpt-oss-20b", llm.spec)
    flags = ["--synthetic", "gpt-oss-20b", "--device", "cpu", "--kv-cache-gib", "0.02", "--out", str(tmp_path)]
    result = run("bench", "engine", *flags, *SMALL)
    assert result.exit_code == 0, result.output
    (found,) = map(Record.load, tmp_path.glob("*.json"))
    assert found.parameters["model"] == "gpt-oss-20b, random weights"
    bad = run("bench", "engine", "--synthetic", "gpt-oss-7b")
    assert isinstance(bad.exception, UserError) and "must be one of gpt-oss-120b, gpt-oss-20b" in str(bad.exception)


@pytest.fixture
def engine(llm):
    """One of its own on the shared model."""
    return Engine(
        llm.model, llm.device, BatchConfig(page_size=4), CacheConfig(kv_cache_gib=0.01), max_context=llm.max_context
    )


def test_no_more_requests_are_in_flight_than_asked_for(engine):
    """With one at a time every step serves one; a prompt's step is prefill, all others decode."""
    requests = draw(3, 4)
    found, made = measure(engine, requests, 1)
    assert found.steps == 12 and engine.totals.largest_step_requests == made.most_at_once == 1
    found, made = measure(engine, requests, 2)
    assert engine.totals.largest_step_requests == made.most_at_once == 2 and found.steps == 8
    assert sum(found.stages_s.values()) > 0 and not engine.has_work
    assert found.first_token_s < 60, "from submission, not from when the requests were drawn"


def test_generated_tokens_are_the_likeliest_when_read_again(engine, bench, tmp_path):
    run = run_level(engine, draw(5, 6), 4, rounds=1, num_checked=3)
    assert run.reread.gaps == (0.0,) * 18
    result = bench(*SMALL, "--check", "2")
    assert "100.0 % of 4, others within 0.00 nats" in " ".join(result.stdout.split())
    (found,) = map(Record.load, tmp_path.glob("*.json"))
    assert found.parameters["reread"] == {
        "tokens": 4, "likeliest_share": 1.0, "mean_gap_nats": 0.0, "largest_gap_nats": 0.0
    }  # fmt: skip
    assert "not checked" in bench(*SMALL, "--check", "0").stdout


def test_wrong_tokens_are_shown_and_recorded_and_then_an_error(bench, tmp_path, monkeypatch):
    """Rows of a batch of two are of the token beside; texts read again are right."""
    head = GptOss.logits

    def disturbed(self, hidden, out=None):
        rolled = head(self, hidden).roll(int(len(hidden) == 2), dims=-1)
        return rolled if out is None else out.copy_(rolled)

    monkeypatch.setattr(GptOss, "logits", disturbed)
    result = bench(*SMALL, "--concurrency", "1,2", "--max-tokens", "20")
    assert result.exit_code == 1 and "% of 40, others within" in " ".join(result.stdout.split())
    assert "with 2 in flight the tokens are wrong: read again they are up to" in " ".join(result.stderr.split())
    assert "with 1 in flight" not in result.stderr
    found = {
        one.parameters["concurrency"]: one.parameters["reread"] for one in map(Record.load, tmp_path.glob("*"))
    }
    assert found[1]["largest_gap_nats"] == 0.0
    assert found[2]["likeliest_share"] < 0.9 and found[2]["mean_gap_nats"] > 1.0, "bf16's bound sees it too"


def test_only_float32_throughout_is_held_to_its_bound(llm):
    loaded = SimpleNamespace(device=llm.device)
    assert not is_rounded(loaded, resolve({}).config)
    for knobs in ({"kv_dtype": "fp8"}, {"kv_dtype": "bf16"}, {"activation": "mxfp8"}):
        assert is_rounded(loaded, resolve(knobs).config)
    assert is_rounded(SimpleNamespace(device=replace(llm.device, capability=(9, 0))), resolve({}).config)


def test_request_that_ends_early_is_an_error_and_nothing_is_recorded(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(GptOss, "logits", lambda self, hidden, *_: torch.full((len(hidden), 272), float("nan")))
    result = bench(*SMALL)
    assert isinstance(result.exception, UserError)
    assert "request 0 gave 0 of 2 tokens and ended with error" in str(result.exception)
    assert not list(tmp_path.glob("*.json"))


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
        (["--prompt-tokens", "250", "--max-tokens", "6"], "256 tokens a request fill the context of 256"),
    ],
)
def test_what_the_engine_could_not_hold_is_refused_before_weights_are_read(bench, flags, message, monkeypatch):
    monkeypatch.setattr(bench_engine, "open_model", None)
    result = bench(*flags)
    assert isinstance(result.exception, UserError) and message in str(result.exception)


def test_full_context_is_measured_where_nothing_is_read_again(bench):
    shape = ["--prompt-tokens", "250", "--max-tokens", "6"]
    assert bench(*SMALL, *shape, "--check", "0").exit_code == 0


def test_text_that_fits_the_cache_but_not_when_read_again_is_refused(engine):
    """Five tokens of four a page take a page of each kind more than four."""
    layout = engine.scheduler.tables.layout
    engine.totals.pages = layout.count_pages(4)
    check_pages(engine, 4)
    with pytest.raises(UserError, match=r"5 tokens a request need \d+ pages, the cache has \d+"):
        check_pages(engine, 5)
