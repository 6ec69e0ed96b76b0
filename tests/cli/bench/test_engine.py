"""`bench engine`: rows and records of a tiny model, and the errors for unsuitable options."""

import json

import pytest
import torch

from firesteel import UserError
from firesteel.measure.record import Record
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import PRESETS

SMALL = ["--concurrency", "2", "--requests", "2", "--prompt-tokens", "3", "--max-tokens", "2", "--rounds", "1"]


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
    recorded = records[4]
    assert (recorded.name, recorded.unit, len(recorded.samples), recorded.seed) == ("engine", "tok/s", 2, 0)
    assert recorded.median == four["output_tok_s"] and recorded.parameters["decode_tok_s"] == four["decode_tok_s"]
    shape = {"requests": 6, "prompt_tokens": 9, "max_tokens": 5}
    assert shape.items() <= recorded.parameters.items()
    assert recorded.config["cache"]["prefix_caching"] is False and recorded.kernels["linear"] == "reference"


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
    (record,) = map(Record.load, tmp_path.glob("*.json"))
    assert record.parameters["model"] == "gpt-oss-20b, random weights"
    bad = run("bench", "engine", "--synthetic", "gpt-oss-7b")
    assert isinstance(bad.exception, UserError) and "must be one of gpt-oss-120b, gpt-oss-20b" in str(bad.exception)


def test_generated_tokens_are_the_most_likely_when_rescored(bench, tmp_path):
    result = bench(*SMALL, "--check", "2")
    assert "100.0 % of 4, others within 0.00 nats" in " ".join(result.stdout.split())
    (record,) = map(Record.load, tmp_path.glob("*.json"))
    assert record.parameters["reread"] == {
        "tokens": 4,
        "likeliest_share": 1.0,
        "mean_gap_nats": 0.0,
        "largest_gap_nats": 0.0,
    }
    assert "not checked" in bench(*SMALL, "--check", "0").stdout


def test_wrong_tokens_are_shown_recorded_and_an_error(bench, tmp_path, monkeypatch):
    """Logits of a batch of two are shifted by one token; rescored texts are correct."""
    head = GptOss.logits

    def disturbed(self, hidden, out=None):
        rolled = head(self, hidden).roll(int(len(hidden) == 2), dims=-1)
        return rolled if out is None else out.copy_(rolled)

    monkeypatch.setattr(GptOss, "logits", disturbed)
    result = bench(*SMALL, "--concurrency", "1,2", "--max-tokens", "20")
    assert result.exit_code == 1 and "% of 40, others within" in " ".join(result.stdout.split())
    assert "with 2 in flight the tokens are wrong: rescored, they are up to" in " ".join(result.stderr.split())
    assert "with 1 in flight" not in result.stderr
    rescored = {
        record.parameters["concurrency"]: record.parameters["reread"]
        for record in map(Record.load, tmp_path.glob("*"))
    }
    assert rescored[1]["largest_gap_nats"] == 0.0
    assert rescored[2]["likeliest_share"] < 0.9 and rescored[2]["mean_gap_nats"] > 1.0, "bf16's bound sees it too"


def test_request_that_ends_early_is_an_error_without_a_record(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(GptOss, "logits", lambda self, hidden, *_: torch.full((len(hidden), 272), float("nan")))
    result = bench(*SMALL)
    assert isinstance(result.exception, UserError)
    assert "request 0 gave 0 of 2 tokens and ended with error" in str(result.exception)
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--concurrency", "9", "--max-num-seqs", "8"], "--concurrency 9: max_num_seqs = 8"),
        (["--prompt-tokens", "250", "--max-tokens", "9"], "259 tokens per request exceed the context of 256"),
        (["--prompt-tokens", "250", "--max-tokens", "6"], "256 tokens per request fill the context of 256"),
    ],
)
def test_requests_that_do_not_fit_are_refused_before_weights_are_read(bench, flags, message, monkeypatch):
    monkeypatch.setattr("firesteel.cli.bench.model.open_model", None)
    result = bench(*flags)
    assert isinstance(result.exception, UserError) and message in str(result.exception)


def test_full_context_is_measured_without_rescoring(bench):
    shape = ["--prompt-tokens", "250", "--max-tokens", "6"]
    assert bench(*SMALL, *shape, "--check", "0").exit_code == 0
