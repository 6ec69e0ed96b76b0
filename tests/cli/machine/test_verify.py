"""The verb verify: its output and exit code."""

import json
from dataclasses import replace

import pytest

from firesteel import UserError
from firesteel.device import find_device
from firesteel.kernels.proof.verify import Check
from firesteel.kernels.registry import ALL_OPS

CPU = find_device("cpu")


def test_verify_without_a_gpu_lists_what_did_not_run_and_verifies_nothing(run, rows_of):
    result = run("verify", "--device", "cpu")
    assert result.exit_code == 3, result.output
    rows = {(row[0], row[1]): row for row in rows_of(result.stdout)}
    for op in ALL_OPS:
        for name in set(op.implementations) - {"reference"}:
            status, why = rows[op.name, name][3], rows[op.name, name][-1]
            # A library that is not installed says so first.
            whys = ("needs an NVIDIA GPU", "needs the package", "add --implementation torch")
            assert status == "not run" and any(words in why for words in whys)
    assert "0 passed, 0 FAILED" in result.stdout and "nothing is verified" in result.stderr


@pytest.mark.parametrize(("failure", "code", "status"), [(None, 0, "passed"), ("worst 3 (allowed 1)", 1, "FAILED")])
def test_verify_exits_with_1_if_something_failed(run, monkeypatch, failure, code, status, rows_of):
    asked = {}

    def told(ops, device, spec, **options):
        asked.update(options, ops=ops)
        yield Check("linear", "triton", "T=1 [x]", failure=failure, worst=0.25, rms=0.125)
        yield Check("linear", "triton", "T=9", refusal="wants fewer")

    monkeypatch.setattr("firesteel.measure.ops.correctness.check_ops", told)
    result = run("verify", "--quick", "--op", "linear")
    assert result.exit_code == code and asked["quick"] and [op.name for op in asked["ops"]] == ["linear"]
    row = ["linear", "triton", "T=1 [x]", status, "0.25", "0.12", failure or ""]
    assert row in rows_of(result.stdout)
    assert ["linear", "triton", "T=9", "refused", "", "", "wants fewer"] in rows_of(result.stdout)
    listed = json.loads(run("verify", "--json").stdout)
    assert [check["status"] for check in listed] == [status, "refused"]


def test_verify_is_limited_to_named_implementations(run, rows_of):
    result = run("verify", "--op", "moe_matmul", "--implementation", "flashinfer", "--device", "cpu")
    assert {row[1] for row in rows_of(result.stdout)} == {f"flashinfer:{kind}" for kind in ("bf16", "fp8", "mxfp8")}
    result = run("verify", "--op", "moe_matmul", "--implementation", "flashinfr")
    assert isinstance(result.exception, UserError) and "these ops have cuda:stream" in str(result.exception)


def test_error_for_an_unknown_op_names_it(run):
    result = run("verify", "--op", "rms_nor")
    assert isinstance(result.exception, UserError) and "did you mean rms_norm?" in str(result.exception)


def test_on_a_gpu_ops_are_checked_in_another_process(run, monkeypatch):
    monkeypatch.setattr("firesteel.device.find_device", lambda name: replace(CPU, name="GPU", capability=(9, 0)))
    monkeypatch.setattr("firesteel.measure.ops.correctness.check_ops", None)
    monkeypatch.setattr(
        "firesteel.measure.ops.correctness.check_apart", lambda *_, **__: iter([Check("linear", "triton", "T=1")])
    )
    assert [check["status"] for check in json.loads(run("verify", "--json").stdout)] == ["passed"]


def test_finished_checks_are_printed_after_an_interrupt(run, monkeypatch):
    def told(*_, **__):
        yield Check("linear", "triton", "T=1")
        raise KeyboardInterrupt

    monkeypatch.setattr("firesteel.measure.ops.correctness.check_ops", told)
    result = run("verify", "--device", "cpu", "--json")
    assert result.exit_code != 0 and [check["op"] for check in json.loads(result.stdout)] == ["linear"]
