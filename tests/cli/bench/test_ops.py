"""`bench ops`: records, tables, plots, and errors raised before anything is measured."""

import itertools
import json
import os

import pytest

from firesteel import UserError, plot, surroundings
from firesteel.cli.bench.ops import parse_m
from firesteel.measure.record import Record
from firesteel.surroundings import GpuState


@pytest.fixture(scope="module", autouse=True)
def small_machine():
    """A rotation through the cache of a real machine, and its ceilings, take long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("firesteel.measure.ops.bench.find_cache_bytes", lambda device: 1 << 10)
        patch.setattr("firesteel.measure.roofline.ceiling._read_bytes", lambda device: 1 << 20)
        patch.setattr("firesteel.measure.roofline.ceiling.MATRIX_SIZE", {False: 128})
        yield


@pytest.fixture(scope="module")
def bench(run, small_machine, checkpoint, tmp_path_factory):
    """(result, folder) of a run with a plot, on the tiny model."""
    out = tmp_path_factory.mktemp("bench") / "records"
    asked = ["--device", "cpu", "--model", str(checkpoint), "--m", "1,2,...,5", "--op", "moe", "--op", "rms_norm"]
    return run("bench", "ops", *asked, "--out", str(out)), out


def test_bench_saves_records_of_ops_and_ceilings_and_a_plot(bench):
    result, out = bench
    assert result.exit_code == 0, result.output
    records = [Record.load(path) for path in out.glob("*.json")]
    measured = {(record.name, record.parameters.get("m"), tuple(record.kernels.values())) for record in records}
    ops = {(f"op {op}", m, ("reference",)) for op in ("moe_matmul", "rms_norm") for m in (1, 2, 4, 5)}
    assert measured == {("read ceiling", None, ()), ("matrix rate float32", None, ()), *ops}
    for record in records:
        if record.name == "op moe_matmul":
            known = record.parameters
            assert known["gb_s"] == pytest.approx(known["bytes"] / record.median / 1e9)
            share = max(known["gb_s"] / known["read_gb_s"], known["tflop_s"] / known["matrix_tflop_s"])
            assert known["share"] == pytest.approx(share) and record.unit == "s"
    assert (out / "ops.png").read_bytes().startswith(b"\x89PNG")
    assert str(out) in result.stderr.replace("\n", "")


def test_bench_prints_a_row_per_case_and_the_ceilings(bench, rows_of):
    result, _ = bench
    rows = [row for row in rows_of(result.stdout) if row[0] in ("moe_matmul", "rms_norm")]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        (op, str(m), "reference") for op in ("rms_norm", "moe_matmul") for m in (1, 2, 4, 5)
    ]
    assert "GB/s, matrix " in result.stdout and all(row[-2] in ("read", "matrix") for row in rows)
    assert all(float(row[-1]) >= 0 for row in rows)  # seconds of the first call


def test_bench_without_a_plot_needs_no_plotting_library(run, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(plot, "LIBRARIES", {"altair_of_nowhere": "altair"})
    asked = ["bench", "ops", "--device", "cpu", "--model", str(checkpoint), "--m", "1", "--op", "rms_norm"]
    refused = run(*asked, "--out", str(tmp_path / "a"))
    assert isinstance(refused.exception, UserError) and "pip install altair, or pass --no-plot" in str(
        refused.exception
    )
    assert not (tmp_path / "a").exists()
    done = run(*asked, "--out", str(tmp_path / "b"), "--no-plot", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)[0]["implementation"] == "reference"
    assert not list((tmp_path / "b").glob("*.html")) and len(list((tmp_path / "b").glob("*.json"))) == 3


def test_each_workload_records_the_state_of_the_gpu_at_its_time(run, checkpoint, tmp_path, monkeypatch):
    """All records of a run had the clocks, power and heat of the moment after the ceilings."""
    asked, commits = itertools.count(), []
    find_commit = surroundings.find_commit
    monkeypatch.setattr(surroundings, "ask_gpu", lambda device: GpuState(clocks_mhz={"sm": float(next(asked))}))
    monkeypatch.setattr(surroundings, "find_commit", lambda folder: commits.append(folder) or find_commit(folder))
    flags = ["--device", "cpu", "--model", str(checkpoint), "--m", "1,2,4", "--op", "rms_norm"]
    assert run("bench", "ops", *flags, "--no-plot", "--out", str(tmp_path)).exit_code == 0
    records = [Record.load(path) for path in tmp_path.glob("op-*.json")]
    clocks = {record.parameters["m"]: record.surroundings.gpu.clocks_mhz["sm"] for record in records}
    assert clocks == {1: 2.0, 2: 3.0, 4: 4.0}  # 0 and 1 are the ceilings'
    assert len(commits) == 2 and len({record.surroundings.packages_hash for record in records}) == 1


def test_requirement_that_would_not_run_fails_before_measuring(run, checkpoint, tmp_path):
    asked = ["bench", "ops", "--device", "cpu", "--model", str(checkpoint), "--out", str(tmp_path / "a")]
    result = run(*asked, "--require", "moe=triton:gemm@native-fp4")
    assert result.exit_code == 1 and not (tmp_path / "a").exists()
    assert "moe_matmul=triton:gemm@native-fp4 is required, but it needs an NVIDIA GPU" in result.stderr


def test_requirement_that_was_not_measured_ends_with_exit_code_one(run, checkpoint, tmp_path, monkeypatch):
    """The exit code was 0 although the measurement was skipped."""
    asked = ["--device", "cpu", "--model", str(checkpoint), "--m", "1", "--op", "route", "--no-plot"]
    asked += ["--out", str(tmp_path), "--require", "route=reference"]
    assert run("bench", "ops", *asked).exit_code == 0
    monkeypatch.setattr("firesteel.measure.ops.bench._refuse", lambda implementation, args: "refused: not now")
    result = run("bench", "ops", *asked)
    assert result.exit_code == 1
    assert "route=reference is required, but at M=1 it was not measured: refused: not now" in result.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", (1,)),
        ("8, 3,8", (8, 3)),
        ("1,2,...,16", (1, 2, 4, 8, 16)),
        ("1,2,...,100", (1, 2, 4, 8, 16, 32, 64, 100)),
        ("3,...,24,1000", (3, 6, 12, 24, 1000)),
    ],
)
def test_numbers_of_tokens_are_listed_or_doubled(text, expected):
    assert parse_m(text) == expected


@pytest.mark.parametrize("text", ["...", "...,8", "1,...", "1,...,x", "-1", "1.5", "16385"])
def test_invalid_numbers_of_tokens_are_refused(text):
    with pytest.raises(UserError, match="--m"):
        parse_m(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--m", "0"], "--m 0: expected numbers from 1 to 16384"),
        (["--m", "1,two"], "got 'two'"),
        (["--m", ","], "--m is empty"),
        (["--activation", "int8"], "--activation int8: must be one of bf16, mxfp8, mxfp4"),
        (["--device", "cpu", "--implementation", "cuda"], "no op runs 'cuda' on CPU"),
        (["--device", "cpu", "--out", os.devnull], f"--out {os.devnull}: cannot write there: "),
        (["--device", "cpu", "--out", "/proc/records"], "--out /proc/records: cannot write there: "),
    ],
)
def test_wrong_options_are_named_before_anything_is_measured(run, monkeypatch, arguments, message):
    monkeypatch.setattr("firesteel.cli.bench.ops._measure", None)
    result = run("bench", "ops", *arguments)
    assert isinstance(result.exception, UserError) and message in str(result.exception)
