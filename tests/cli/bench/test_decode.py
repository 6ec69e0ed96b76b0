"""`bench decode`: rows, records, plot, and the errors for unsuitable options."""

import json
from dataclasses import replace

import pytest
import torch

from firesteel import UserError
from firesteel.errors import KernelError
from firesteel.measure.decode import bench as decode_bench
from firesteel.measure.record import Record
from firesteel.measure.roofline.ceiling import Ceiling
from firesteel.measure.timing import Timing
from firesteel.model.decode_ops import GROUPS, DecodeOps
from firesteel.model.spec import PRESETS
from firesteel.model.weights import weight_bytes

OURS = tuple(group for group in GROUPS if group != "experts")  # rows of Kindling's experts differ in length

SMALL = ["--device", "cpu", "--page-size", "8", "--memory-reserve-gib", "0", "--steps", "3", "--check", "4"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    timing = Timing(samples_s=(0.1,), calls=1, warmups=1)
    ceiling = Ceiling(work=2e9, scale=1e9, unit="", timing=timing)
    monkeypatch.setattr("firesteel.measure.roofline.ceiling.read_ceiling", lambda _: ceiling)
    monkeypatch.setattr(decode_bench, "EXPERT_TOKENS", 6)
    monkeypatch.setattr(decode_bench, "GROUP_STEPS", 2)


@pytest.fixture
def bench(run, checkpoint, tmp_path):
    def invoke(*flags, **environment):
        return run("bench", "decode", str(checkpoint), *SMALL, "--out", str(tmp_path), *flags, **environment)

    return invoke


def test_each_batch_and_context_has_a_row_and_a_record(bench, tmp_path, llm):
    result = bench("--batch", "1,3", "--context", "12,40", "--no-plot", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [(row["batch"], row["context"]) for row in rows] == [(1, 12), (1, 40), (3, 12), (3, 40)]
    for row in rows:
        assert tuple(row["groups_ms"]) == OURS and row["checked_steps"] == 4 and row["read_gb_s"] == 20
        assert row["tok_s"] == pytest.approx(1e3 * row["batch"] / row["ms_a_step"])
        assert row["share_of_floor"] == pytest.approx(row["floor_ms"] / row["ms_a_step"])
        assert (
            row["way"] == "eager, plain launch" and len(row["experts"]["distinct_by_layer"]) == llm.spec.num_layers
        )
        assert row["allocated_bytes"] > weight_bytes(llm.spec)
    assert rows[1]["bytes_a_step"] > rows[0]["bytes_a_step"] and rows[2]["bytes_a_token"] < rows[0]["bytes_a_token"]
    records = [Record.load(path) for path in tmp_path.glob("*.json")]
    assert sorted(record.name for record in records) == [
        f"decode batch {batch} context {context}" for batch in (1, 3) for context in (12, 40)
    ]
    for record in records:
        assert len(record.samples) == 3 and record.unit == "ms" and record.seed == 0
        assert record.kernels["decode_qkv"] == "reference" and record.median == record.parameters["ms_a_step"]
        assert record.config["kernels"]["cuda_graphs"] is True


def test_a_batch_that_is_refused_is_a_row_and_not_the_end(bench, tmp_path, monkeypatch):
    """On a GB10 some kernels accept no 5 requests: once that lost the figures of all other batches."""
    measure = decode_bench.measure

    def refuse_two(sweep, subject, batch, context):
        if batch == 2:
            raise KernelError("decode_o needs 107904 bytes of shared memory")
        return measure(sweep, subject, batch, context)

    monkeypatch.setattr(decode_bench, "measure", refuse_two)
    result = bench("--batch", "1,2,3", "--context", "12", "--no-plot", "--json")
    assert result.exit_code == 1
    rows = json.loads(result.stdout)
    assert [row["batch"] for row in rows] == [1, 2, 3] and all(rows[i]["tok_s"] > 0 for i in (0, 2))
    assert rows[1] == {
        "batch": 2,
        "context": 12,
        "not_measured": "decode_o needs 107904 bytes of shared memory",
    }
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert "batch 2 at 12 tokens was not measured: decode_o needs" in result.stderr
    table = bench("--batch", "1,2", "--context", "12", "--no-plot")
    assert table.exit_code == 1 and "tok/s" in table.stdout and "batch 2 at 12 tokens" in table.stderr


def test_tables_and_plot_name_the_variant(bench, rows_of, tmp_path):
    result = bench("--context", "12")
    assert result.exit_code == 0, result.output
    (whole, groups) = rows_of(result.stdout)
    assert whole[:2] == groups[:2] == ["1", "12"] and len(groups) == 2 + len(OURS) + 2
    assert "all variants gave the same bits over 4 steps" in " ".join(result.stdout.split())
    assert "plain references run" in result.stderr and "records are in" in result.stderr
    assert (tmp_path / "decode.html").stat().st_size > 10_000 and (tmp_path / "decode.png").is_file()


def test_mxfp4_layers_are_used_and_counted(bench):
    plain, packed = (
        json.loads(bench("--context", "12", "--no-plot", "--json", *flags).stdout)[0]
        for flags in ([], ["--mxfp4-layers", "lm_head"])
    )
    assert packed["bytes_a_step"] < plain["bytes_a_step"]


def test_fp8_keys_and_values_are_used_and_counted(bench):
    wide, narrow = (
        json.loads(bench("--context", "40", "--no-plot", "--json", *flags).stdout)[0]
        for flags in ([], ["--kv-dtype", "fp8"])
    )
    assert narrow["bytes_a_step"] < wide["bytes_a_step"] and narrow["checked_steps"] == 4


def test_random_weights_of_a_preset_are_measured_under_its_name(run, tmp_path, monkeypatch, llm):
    monkeypatch.setitem(PRESETS, "gpt-oss-20b", llm.spec)
    result = run(
        "bench",
        "decode",
        "--synthetic",
        "gpt-oss-20b",
        *SMALL,
        "--context",
        "9",
        "--no-plot",
        "--out",
        str(tmp_path),
    )
    assert result.exit_code == 0, result.output
    assert Record.load(next(tmp_path.glob("*.json"))).parameters["model"] == "gpt-oss-20b, random weights"


def test_steps_that_do_not_repeat_their_bits_are_an_error_without_a_record(bench, tmp_path, monkeypatch):
    plain = DecodeOps.choose

    def noisy(*args, **settings):
        ops = plain(*args, **settings)

        def o(operands):
            operands.r.add_(1e-2 * torch.randn_like(operands.r))
            return ops.o(operands)

        return ops._replace(o=o)

    monkeypatch.setattr(DecodeOps, "choose", noisy)
    result = bench("--context", "12", "--no-plot")
    assert result.exit_code == 1 and "differ over 4 steps" in result.stderr
    assert not list(tmp_path.glob("*.json"))


def test_pins_and_requirements_reach_decode_ops(bench, tmp_path):
    flags = ["--kernels", "decode_o=reference", "--require", "decode_fc1=reference"]
    assert bench("--context", "12", "--no-plot", *flags).exit_code == 0
    result = bench("--context", "12", "--no-plot", "--kernels", "decode_o=cuda")
    assert result.exit_code == 1 and "decode_o=cuda" in result.stderr and "here there is reference" in result.stderr
    result = bench("--context", "12", "--no-plot", "--require", "decode_fc2=cuda")
    assert result.exit_code == 1 and "decode_fc2=cuda is required" in result.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch", "9"], "--batch 9: expected comma-separated numbers from 1 to 8, got '9'"),
        (["--batch", "1,x"], "got 'x'"),
        (["--context", "-1"], "--context -1: expected comma-separated numbers of at least 0"),
        (["--context", "250"], "lower --context or --check"),
        (["--model", "kindling"], "name the model once"),
        (["--synthetic", "gpt-oss-20b"], "name the model once"),
        (["--delays"], "only CUDA kernels have delays"),
        (["--kernels", "linear=reference"], "linear=reference: only the decode ops run in a bare step"),
        (["--require", "moe=reference"], "moe=reference: only the decode ops run in a bare step"),
        (["--activation", "mxfp4"], "use --activation mxfp8 or bf16"),
    ],
)
def test_unsuitable_options_are_refused_with_a_cure(bench, flags, message):
    result = bench("--no-plot", *(["--context", "12"] if "--context" not in flags else []), *flags)
    assert isinstance(result.exception, UserError) and message in str(result.exception), result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_cpu_must_be_named(run, tmp_path):
    result = run("bench", "decode", "--out", str(tmp_path))
    assert isinstance(result.exception, UserError)
    assert "torch sees no GPU here" in str(result.exception) and "--device cpu" in str(result.exception)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("flags", "way"),
    [
        ([], "CUDA graph, dependent launch"),
        (["--no-dependent-launch"], "CUDA graph, plain launch"),
        (["--enforce-eager"], "eager, dependent launch"),
        (["--delays", "--mxfp4-layers", "all"], "CUDA graph, dependent launch"),
        (["--delays", "--kv-dtype", "fp8"], "CUDA graph, dependent launch"),
    ],
)
def test_on_a_gpu_the_kernels_run_in_the_configured_variant(run, tmp_path, monkeypatch, flags, way):
    spec = replace(PRESETS["gpt-oss-120b"], num_layers=4, windows=(128, None) * 2, vocab_size=4096)
    monkeypatch.setitem(PRESETS, "gpt-oss-20b", spec)
    sizes = ["--batch", "1,8", "--context", "0,300", "--steps", "40", "--check", "30"]
    result = run(
        "bench", "decode", "--synthetic", "gpt-oss-20b", *sizes, "--no-plot", "--out", str(tmp_path), *flags
    )
    assert result.exit_code == 0, result.output
    records = [Record.load(path) for path in tmp_path.glob("*.json")]
    assert len(records) == 4
    for record in records:
        assert record.parameters["way"] == way and len(record.samples) == 40
        assert all(runs.startswith("cuda") for runs in record.kernels.values()), record.kernels
        assert record.parameters["allocated_bytes"] > weight_bytes(spec) / 2
