"""Verbs that examine the machine and the kernels."""

import json
from dataclasses import replace

import pytest

from firesteel import UserError, plot
from firesteel.cli.lab import parse_m
from firesteel.device import find_device
from firesteel.kernels import ALL_OPS
from firesteel.kernels.compile_all import Failure
from firesteel.kernels.verify import Check
from firesteel.measure.record import Record

CPU = find_device("cpu")


def test_roofline_prints_the_ceiling_and_every_op(run):
    text = run("roofline", "--model", "gpt-oss-120b", "--gpu", "gb10", "--dense", "mxfp4").stdout
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]
    parts = [row[:2] for row in rows]
    for part in (["linear", "qkv"], ["linear", "lm_head"], ["moe_matmul", "gate_up"], ["attention", "all"]):
        assert part in parts
    total = next(row for row in rows if row[0] == "all")
    assert (total[3], total[-1]) == ("2749.0", "11849.0")
    assert ["measured read", "232", "11.849", "84.4", "85 %", "71.7", "predicted, not yet run"] in rows
    assert "drafted" not in text


def test_roofline_json_follows_every_flag(run):
    def asked(*flags):
        result = run("roofline", "--gpu", "h200", "--json", *flags)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    plain = asked()
    assert plain["model"] == "gpt-oss-120b" and plain["gpu"] == "H200 SXM" and plain["speculation"] is None
    assert plain["bytes"] == pytest.approx(5.0e9, rel=1e-3) and plain["flops"] == pytest.approx(10.26e9, rel=1e-3)
    assert [round(one["ceiling_tok_s"]) for one in plain["predictions"]] == [959, 928]
    assert sum(op["matrix_bytes"] + op["vector_bytes"] + op["kv_bytes"] for op in plain["ops"]) == plain["bytes"]
    assert asked("--model", "gpt-oss-20b")["bytes"] == pytest.approx(3.71e9, rel=1e-3)
    assert asked("--dense", "q8_0")["bytes"] == pytest.approx(3.56e9, rel=2e-3)
    long, half = (asked("--context", "8192", "--kv", kv)["bytes"] for kv in ("bf16", "fp8"))
    assert long - plain["bytes"] == pytest.approx(307e6, rel=1e-2) and long - half == pytest.approx(153e6, rel=1e-2)
    assert asked("--batch", "8")["distinct_experts"] == pytest.approx(28.7, abs=0.05)
    assert asked("--batch", "8", "--experts", "20")["distinct_experts"] == 20
    assert asked("--share", "0.5")["predictions"][0]["predicted_tok_s"] == pytest.approx(959.4 / 2, rel=1e-3)
    assert asked("--draft", "3")["speculation"]["cost"] == pytest.approx(2.07, abs=0.005)


def test_roofline_takes_a_checkpoint_and_tells_when_drafts_gain(run, checkpoint):
    result = run("roofline", "--gpu", "5090", "--model", str(checkpoint), "--draft", "2")
    assert result.exit_code == 0, result.output
    assert "2 drafted: a verifying step costs" in result.stdout and "gains from an acceptance of" in result.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gpu", "tpu"], "there is no GPU 'tpu' in the table; it has gb10, h100, h200, b200, 5090, pro6000"),
        (["--gpu", "gb10", "--dense", "int8"], "dense = int8: must be one of bf16, q8_0, fp8, mxfp4"),
        (["--gpu", "gb10", "--model", "/gone"], "/gone is not a folder"),
    ],
)
def test_roofline_names_what_it_does_not_know(run, flags, message):
    result = run("roofline", *flags)
    assert isinstance(result.exception, UserError) and message in str(result.exception)


def rows_of(text):
    """Cells of a table's rows."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]


def test_prove_shows_every_target_and_calls_an_absent_one_not_yet_run(run):
    result = run("prove", "--op", "rms_norm", "--target", "sm_90a", "--target", "sm_121a")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("compiled and proven, not yet run") == 1
    rows = [row for row in rows_of(result.stdout) if row[0] == "rms_norm"]
    assert [row[-1].split(" of ")[1] for row in rows] == ["232,448", "101,376"]
    assert all(row[1:5] == ["triton", "none", "0", "0"] for row in rows)


def test_prove_json_has_a_row_a_variant_for_gb10_where_there_is_no_gpu(run, monkeypatch):
    monkeypatch.setattr("firesteel.cli.lab.find_device", lambda: CPU)
    result = run("prove", "--op", "quantize_mxfp8", "--json")
    proofs = json.loads(result.stdout)
    assert proofs and {proof["target"] for proof in proofs} == {"sm_121a"}
    wanted = {
        "op",
        "variant",
        "target",
        "verdict",
        "ptx",
        "sass",
        "registers",
        "spills",
        "shared_bytes",
        "compiler",
    }
    assert all(set(proof) == wanted for proof in proofs)


def test_prove_is_for_this_gpu_where_there_is_one(run, monkeypatch):
    hopper = replace(CPU, name="H100", capability=(9, 0))
    monkeypatch.setattr("firesteel.cli.lab.find_device", lambda: hopper)
    text = run("prove", "--op", "rms_norm").stdout
    assert "sm_90a" in text and "sm_121a" not in text


def test_a_requirement_that_is_not_met_ends_with_one_and_the_ops_name(run):
    asked = ["prove", "--op", "quantize_mxfp8", "--target", "sm_121a", "--json"]
    missing = run(*asked, "--require", "rms_norm=triton@native-fp4")
    assert missing.exit_code == 1 and "rms_norm=triton@native-fp4 is required" in missing.stderr
    assert {proof["op"] for proof in json.loads(missing.stdout)} == {"rms_norm", "quantize_mxfp8"}
    assert run(*asked, "--require", "rms_norm=triton@none", "--require", "quantize_mxfp8=triton").exit_code == 0


def test_a_kernel_that_does_not_compile_is_named_and_ends_with_one(run, monkeypatch):
    failure = Failure("linear", "triton:gemm", "sm_121a", "CompilationError: line 3")
    monkeypatch.setattr("firesteel.cli.lab.prove_all", lambda *_, **__: ([], [failure]))
    result = run("prove", "--target", "sm_121a")
    assert result.exit_code == 1
    assert "linear triton:gemm does not compile for sm_121a: CompilationError: line 3" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prove", "--op", "rms_nor"], "there is no op 'rms_nor'; did you mean rms_norm?"),
        (["prove", "--op", "rms_norm", "--target", "sm_121"], "no target 'sm_121'; did you mean sm_121a?"),
        (["prove", "--require", "moe"], "'moe' is not OP=IMPLEMENTATION"),
        (["verify", "--op", "rms_nor"], "did you mean rms_norm?"),
        (["bench", "ops", "--m", "0"], "--m 0: wants numbers from 1 to 16384"),
        (["bench", "ops", "--m", "1,two"], "not 'two'"),
        (["bench", "ops", "--m", ","], "--m is empty"),
        (["bench", "ops", "--activation", "int8"], "--activation int8: must be one of bf16, mxfp8, mxfp4"),
        (["bench", "ops", "--device", "cpu", "--implementation", "cuda"], "no op runs 'cuda' on CPU"),
        (["spark-report", "--out", "/gone/report.zip"], "there is no folder /gone"),
    ],
)
def test_what_the_user_can_mend_is_named(run, arguments, message):
    result = run(*arguments)
    assert isinstance(result.exception, UserError) and message in str(result.exception)


def test_verify_without_a_gpu_says_what_was_not_run_and_that_nothing_is_verified(run):
    result = run("verify", "--device", "cpu")
    assert result.exit_code == 0, result.output
    rows = {(row[0], row[1]): row for row in rows_of(result.stdout)}
    for op in ALL_OPS:
        for name in set(op.implementations) - {"reference"}:
            assert rows[op.name, name][3] == "not run" and "needs an NVIDIA GPU" in rows[op.name, name][-1]
    assert "0 passed, 0 FAILED" in result.stdout and "nothing is verified" in result.stderr


@pytest.mark.parametrize(("failure", "code", "status"), [(None, 0, "passed"), ("worst 3 (allowed 1)", 1, "FAILED")])
def test_verify_ends_with_one_if_something_failed(run, monkeypatch, failure, code, status):
    asked = {}

    def told(ops, device, spec, **options):
        asked.update(options, ops=ops)
        yield Check("linear", "triton", "T=1 [x]", failure=failure, worst=0.25, rms=0.125)
        yield Check("linear", "triton", "T=9", refusal="wants fewer")

    monkeypatch.setattr("firesteel.cli.lab.check_ops", told)
    result = run("verify", "--quick", "--op", "linear")
    assert result.exit_code == code and asked["quick"] and [op.name for op in asked["ops"]] == ["linear"]
    row = ["linear", "triton", "T=1 [x]", status, "0.25", "0.12", failure or ""]
    assert row in rows_of(result.stdout)
    assert ["linear", "triton", "T=9", "refused", "", "", "wants fewer"] in rows_of(result.stdout)
    listed = json.loads(run("verify", "--json").stdout)
    assert [one["status"] for one in listed] == [status, "refused"]


@pytest.fixture(scope="session")
def bench(run, checkpoint, tmp_path_factory):
    """(result, folder) of a run with a plot, on the tiny model."""
    out = tmp_path_factory.mktemp("bench") / "records"
    asked = ["--device", "cpu", "--model", str(checkpoint), "--m", "1,2,...,5", "--op", "moe", "--op", "rms_norm"]
    with pytest.MonkeyPatch.context() as patch:  # a rotation through the cache of a real machine takes long
        patch.setattr("firesteel.measure.bench.find_cache_bytes", lambda device: 1 << 10)
        patch.setattr("firesteel.measure.ceiling._read_bytes", lambda device: 1 << 20)
        return run("bench", "ops", *asked, "--out", str(out)), out


def test_bench_saves_a_record_each_the_ceilings_and_a_page(bench):
    result, out = bench
    assert result.exit_code == 0, result.output
    records = [Record.load(path) for path in out.glob("*.json")]
    measured = {(one.name, one.parameters.get("m"), tuple(one.kernels.values())) for one in records}
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


def test_bench_prints_a_row_each_and_the_ceilings(bench):
    result, _ = bench
    rows = [row for row in rows_of(result.stdout) if row[0] in ("moe_matmul", "rms_norm")]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        (op, str(m), "reference") for op in ("rms_norm", "moe_matmul") for m in (1, 2, 4, 5)
    ]
    assert "GB/s, matrix " in result.stdout and all(row[-1] in ("read", "matrix") for row in rows)


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


def test_bench_fails_before_measuring_if_what_is_required_would_not_run(run, checkpoint, tmp_path):
    asked = ["bench", "ops", "--device", "cpu", "--model", str(checkpoint), "--out", str(tmp_path / "a")]
    result = run(*asked, "--require", "moe=triton:gemm@native-fp4")
    assert result.exit_code == 1 and not (tmp_path / "a").exists()
    assert "moe_matmul=triton:gemm@native-fp4 is required, but it needs an NVIDIA GPU" in result.stderr


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
def test_numbers_of_tokens_that_make_no_sense(text):
    with pytest.raises(UserError, match="--m"):
        parse_m(text)
