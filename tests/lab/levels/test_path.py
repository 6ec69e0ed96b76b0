"""Level 1.5: a planted fallback turns it red."""

import dataclasses

import pytest

from firesteel.device import find_device
from firesteel.lab.client.api import Api
from firesteel.lab.levels.path import check_path, gather
from firesteel.lab.servers.supervisor import Supervised
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import Order

MARLIN = "INFO [mxfp4.py:352] Using 'MARLIN' Mxfp4 MoE backend."


@pytest.fixture
def judge(fake, tmp_path, monkeypatch):
    """judge("vllm", log=..., ledger=...): the level's result for a server that left these; on a CPU if not said."""

    def run(kind, *, log="", ledger=None, cross_check=None, capability=None, **fields):
        machine = dataclasses.replace(find_device("cpu"), capability=capability)
        monkeypatch.setattr("firesteel.lab.levels.path.find_device", lambda: machine)
        with Supervised(fake(), tmp_path) as server:
            target = Target(api=Api.of(server.command.url), kind=kind, folder=tmp_path, model="x", server=server)
            target.greet()
            with server.log.open("a") as file:
                file.write(log + "\n")
            Target.read_ledger, original = (lambda self: ledger), Target.read_ledger
            try:
                return check_path(target, Order(quick=True, **fields), cross_check)
            finally:
                Target.read_ledger = original

    return run


def ledger(implementation, device="NVIDIA H200"):
    ran = [{"op": "moe_matmul", "implementation": implementation, "activation": "bf16", "calls": 1}]
    return {"device": device, "kernels": {}, "ran": ran}


def kernels_of(result, check="kernels"):
    return next(row for row in result.figures["checks"] if row["check"] == check)


def with_code(*verdicts, device="NVIDIA H200"):
    """`verdicts` are of kernels k0, k1 and so on; one that is "interpreted" has no machine code."""
    found = ledger("triton:gemm", device)
    found["ran"][0]["launches"] = {f"k{number}": 1 for number in range(len(verdicts))}
    found["ran"][0]["artefacts"] = [
        {"kernel": f"k{number}", "tile": "", "artefact": str(number), "launches": 1, "verdict": one}
        for number, one in enumerate(verdicts) if one != "interpreted"
    ]  # fmt: skip
    return found


def test_machine_code_that_ran_has_been_read(judge):
    found = kernels_of(judge("firesteel", ledger=with_code("none", "bf16", "int8", "bf16")), "proof")
    assert found["passed"] and found["words"] == "machine code of 4 kernels read: 1 int8, 2 bf16, 1 none"


def test_a_cpu_has_no_machine_code_to_read(judge):
    result = judge("firesteel", ledger=with_code("interpreted", device="CPU"))
    assert [row["check"] for row in result.figures["checks"]].count("proof") == 0


@pytest.mark.parametrize("verdict", [None, "unread", "interpreted"])
def test_machine_code_that_was_not_read_is_red(judge, verdict):
    result = judge("firesteel", ledger=with_code("bf16", verdict))
    found = kernels_of(result, "proof")
    assert not result.passed and not found["passed"]
    assert found["words"] == "machine code of 1 kernels read: 1 bf16; not that of k1"
    assert kernels_of(judge("firesteel", ledger=with_code(verdict)), "proof")["words"].startswith("no machine code")


def test_log_that_says_marlin_is_red_where_native_fp4_was_asked_for(judge):
    found = kernels_of(judge("vllm", log=MARLIN, path="native-fp4"))
    assert not found["passed"] and "marlin ran" in found["words"]
    assert kernels_of(judge("vllm", log=MARLIN, path="marlin"))["passed"]


def test_cpu_is_red_on_a_machine_with_a_gpu(judge):
    log = "INFO Using CPU_ATTN backend."
    found = kernels_of(judge("vllm", log=log, capability=(9, 0)))
    assert not found["passed"] and "cpu ran" in found["words"]
    assert kernels_of(judge("vllm", log=log))["passed"]


def test_machine_of_a_server_that_ran_already_is_not_known(fake, tmp_path, monkeypatch):
    monkeypatch.setattr("firesteel.lab.levels.path.find_device", lambda: pytest.fail("it may be another one"))
    with Supervised(fake(), tmp_path) as server:
        target = Target(api=Api.of(server.command.url), kind="vllm", folder=tmp_path, model="x")
        assert gather(target, Order(url=server.command.url)).machine is None


def test_reference_where_another_was_required_is_red(judge):
    result = judge("firesteel", ledger=ledger("reference"), flags=("--require", "moe=triton:gemm"))
    assert not result.passed and "moe_matmul=triton:gemm was asked for, reference ran" in result.reason
    assert judge("firesteel", ledger=ledger("triton:gemm"), flags=("--require", "moe=triton:gemm")).passed


def test_difference_that_the_profiler_found_is_red(judge):
    found = judge("firesteel", ledger=ledger("triton:gemm"), cross_check="gemv: 3 launches, the profiler saw 0")
    assert not found.passed and "the profiler saw 0" in found.reason
    assert judge("firesteel", ledger=ledger("triton:gemm"), cross_check="").passed


def test_profile_is_read_where_one_is_given(judge, tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": [{"name": "void marlin::Marlin", "cat": "kernel", "ts": 0, "dur": 1}]}')
    assert "marlin ran" in kernels_of(judge("vllm", path="cutlass", trace=str(trace)))["words"]


def test_package_that_the_server_cannot_import_is_red(judge):
    result = judge("vllm", log=MARLIN)
    assert not result.passed and "vllm cannot be imported by the server's Python" in result.reason
    assert result.figures["packages"]["torch"]


def test_engine_without_rules_is_not_judged(judge):
    result = judge("other")
    assert result.passed and not result.was_run and "no rules" in result.reason
