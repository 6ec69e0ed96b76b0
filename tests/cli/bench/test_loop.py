"""`bench decode --engine`: rows, records, and the errors for unsuitable options."""

import json

import pytest

from firesteel.cli.bench import loop as cli_loop
from firesteel.measure.loop import bench as loop_bench
from firesteel.measure.record import Record
from firesteel.measure.roofline.ceiling import Ceiling
from firesteel.measure.roofline.roofline import StepShape, step_cost
from firesteel.measure.timing import Timing

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
    timing = Timing(samples_s=(0.1,), calls=1, warmups=1)
    monkeypatch.setattr(
        cli_loop, "read_ceiling", lambda _, lent: Ceiling(work=2e9, scale=1e9, unit="", timing=timing)
    )
    monkeypatch.setattr(loop_bench, "BARE_STEPS", 3)
    monkeypatch.setattr(loop_bench, "EXPERT_TOKENS", 6)

    def invoke(*flags, plot="--no-plot"):
        return run("bench", "decode", str(checkpoint), "--engine", *SMALL, plot, "--out", str(tmp_path), *flags)

    return invoke


def test_each_batch_and_context_has_a_row_and_a_record(bench, tmp_path, llm):
    result = bench("--batch", "1,3,9", "--context", "5", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["batch"] for row in rows] == [1, 3, 9]
    for row in rows:
        assert row["tokens"] == 10 * row["batch"], "the first two of each came with its prompt and right after it"
        assert row["tok_s"] == pytest.approx(1e3 * row["batch"] / row["ms_a_step"])
        assert row["share_of_bare_replay"] == pytest.approx(row["bare_ms_a_step"] / row["ms_a_step"])
        assert 0 < row["idle_share"] < 1 and row["reread"]["likeliest_share"] == 1 and row["captured"] is False
        assert len(row["experts"]["distinct_by_layer"]) == llm.spec.num_layers
        assert 0 < row["startup"]["first_token_s"] < row["startup"]["second_token_s"]
        assert row["startup"]["caches"] == {}, "a CPU compiles nothing"
    records = {record.parameters["batch"]: record for record in map(Record.load, tmp_path.glob("*.json"))}
    assert sorted(records) == [1, 3, 9] and records[9].name == "engine decode batch 9 context 5"
    assert len(records[3].samples) == 9 and records[3].unit == "ms"
    assert records[3].parameters["run_ahead_steps"] == 0 and records[3].config["cache"]["prefix_caching"] is False


def test_figures_are_those_of_bench_decode_with_the_stages_of_a_step(bench, llm):
    [row] = json.loads(bench("--batch", "3", "--context", "5", "--json").stdout)
    assert row["read_gb_s"] == 20 and row["ms_a_token"] == pytest.approx(row["ms_a_step"] / 3)
    step = StepShape(requests=3, context=11, distinct_experts=row["experts"]["distinct_a_layer_and_step"])
    assert row["bytes_a_step"] == pytest.approx(step_cost(llm.spec, step).bytes), "at the middle depth"
    assert row["bytes_a_token"] == row["bytes_a_step"] / 3 and row["bytes_at_context"] == 11
    assert row["share_of_floor"] == pytest.approx(row["floor_ms"] / row["ms_a_step"])
    assert row["floor_tok_s"] == pytest.approx(3e3 / row["floor_ms"])
    stages = row["stages_ms_a_step"]
    assert list(stages) == ["schedule", "build", "run", "wait", "read", "rest"] and min(stages.values()) > 0
    assert sum(stages.values()) == pytest.approx(row["ms_a_step"]) and stages["run"] > stages["schedule"]


def test_random_tokens_are_not_rescored(bench, run, checkpoint):
    [row] = json.loads(bench("--batch", "3", "--context", "5", "--temperature", "1", "--json").stdout)
    assert row["reread"] is None and row["temperature"] == 1 and row["tokens"] == 30
    assert row["experts"]["tokens"] == 15, "five steps of three requests"
    refused = run("bench", "decode", str(checkpoint), "--temperature", "1", "--device", "cpu")
    assert "add --engine" in str(refused.exception)


def test_table_shows_the_start_up_time(bench):
    result = bench("--context", "5")
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "of bare replay" in text and "to the first token" in text and "scheduling us" in text
    assert "at 20 GB/s" in text and "of the floor" in text and "MB per token" in text


def test_plot_file_differs_from_that_of_bare_steps(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "firesteel.plot._save", lambda chart, folder, name: [folder / name, chart.to_dict()["title"]]
    )
    result = bench("--context", "5", plot="--plot")
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "engine-decode" in text and "through the engine, eager; dashed: floor at 20 GB/s" in text


def test_wrong_tokens_are_an_error(bench, monkeypatch):
    plain = loop_bench.rescore
    monkeypatch.setattr(
        loop_bench, "rescore", lambda engine, requests, tokens: plain(engine, requests, {"0": [5] * 12})
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
        (["--context", "5", "--steps", "1"], "raise --steps"),
        (["--context", "5", "--steps", "2"], "raise --steps"),
        (["--check", "9"], "--check: variants of a step are compared without --engine"),
        (["--delays"], "--delays: variants of a step are compared without --engine"),
    ],
)
def test_unsuitable_options_are_refused(bench, flags, message):
    result = bench(*flags)
    assert result.exit_code != 0 and message in str(result.exception) + result.output
