"""Level 1.5: a planted fallback fails it."""

import dataclasses

import pytest

from firesteel.device import find_device
from firesteel.lab.client.api import Api
from firesteel.lab.levels.kernel_path import check_kernel_path, gather_evidence
from firesteel.lab.path.ledger import parse_ledger
from firesteel.lab.servers.supervisor import SupervisedServer
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import LabSpec
from tests.lab.contexts import make_context

MARLIN = "INFO [mxfp4.py:352] Using 'MARLIN' Mxfp4 MoE backend."


@pytest.fixture
def judge(fake, tmp_path, monkeypatch):
    """judge("vllm", log=..., ledger=...): the level's result for such a server; on a CPU without `capability`."""

    def run(kind, *, log="", ledger=None, cross_check=None, capability=None, **fields):
        machine = dataclasses.replace(find_device("cpu"), capability=capability)
        monkeypatch.setattr("firesteel.lab.levels.kernel_path.find_device", lambda: machine)
        with SupervisedServer(fake(), tmp_path) as server:
            target = Target(api=Api.of(server.command.url), kind=kind, folder=tmp_path, model="x", server=server)
            target.identify()
            with server.log.open("a") as file:
                file.write(log + "\n")
            monkeypatch.setattr(Target, "read_ledger", lambda self: parse_ledger(ledger))
            spec = LabSpec(quick=True, **fields)
            return check_kernel_path(make_context(target, spec, cross_check=cross_check))

    return run


def ledger(implementation, device="NVIDIA H200"):
    ran = [{"op": "moe_matmul", "implementation": implementation, "activation": "bf16", "calls": 1}]
    return {"device": device, "kernels": {}, "ran": ran}


def find_check(result, check="kernels"):
    return next(row for row in result.checks if row.check == check)


def with_code(*verdicts, device="NVIDIA H200"):
    """`verdicts` are those of kernels k0, k1 and so on; "interpreted" has no machine code."""
    content = ledger("triton:gemm", device)
    content["ran"][0]["launches"] = {f"k{number}": 1 for number in range(len(verdicts))}
    content["ran"][0]["artefacts"] = [
        {"kernel": f"k{number}", "tile": "", "artefact": str(number), "launches": 1, "verdict": verdict}
        for number, verdict in enumerate(verdicts)
        if verdict != "interpreted"
    ]
    return content


def test_machine_code_that_was_read_passes(judge):
    row = find_check(judge("firesteel", ledger=with_code("none", "bf16", "int8", "bf16")), "proof")
    assert row.passed and row.words == "machine code of 4 kernels read: 1 int8, 2 bf16, 1 none"


def test_a_cpu_has_no_machine_code_to_read(judge):
    result = judge("firesteel", ledger=with_code("interpreted", device="CPU"))
    assert [row.check for row in result.checks].count("proof") == 0


@pytest.mark.parametrize("verdict", [None, "unread", "interpreted"])
def test_machine_code_that_was_not_read_fails(judge, verdict):
    result = judge("firesteel", ledger=with_code("bf16", verdict))
    row = find_check(result, "proof")
    assert not result.passed and not row.passed
    assert row.words == "machine code of 1 kernels read: 1 bf16; not that of k1"
    assert find_check(judge("firesteel", ledger=with_code(verdict)), "proof").words.startswith("no machine")


def test_marlin_in_the_log_fails_if_native_fp4_was_requested(judge):
    row = find_check(judge("vllm", log=MARLIN, path="native-fp4"))
    assert not row.passed and "marlin ran" in row.words
    assert find_check(judge("vllm", log=MARLIN, path="marlin")).passed


def test_cpu_fails_on_a_machine_with_a_gpu(judge):
    log = "INFO Using CPU_ATTN backend."
    row = find_check(judge("vllm", log=log, capability=(9, 0)))
    assert not row.passed and "cpu ran" in row.words
    assert find_check(judge("vllm", log=log)).passed


def test_machine_of_a_server_that_was_running_already_is_unknown(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "firesteel.lab.levels.kernel_path.find_device", lambda: pytest.fail("the server may be elsewhere")
    )
    with SupervisedServer(fake(), tmp_path) as server:
        target = Target(api=Api.of(server.command.url), kind="vllm", folder=tmp_path, model="x")
        assert gather_evidence(target, LabSpec(url=server.command.url)).machine is None


def test_reference_fails_if_another_implementation_was_required(judge):
    result = judge("firesteel", ledger=ledger("reference"), flags=("--require", "moe=triton:gemm"))
    assert not result.passed and "moe_matmul=triton:gemm was required, but reference ran" in result.reason
    assert judge("firesteel", ledger=ledger("triton:gemm"), flags=("--require", "moe=triton:gemm")).passed


def test_difference_found_by_the_profiler_fails(judge):
    result = judge("firesteel", ledger=ledger("triton:gemm"), cross_check="gemv: 3 launches, the profiler saw 0")
    assert not result.passed and "the profiler saw 0" in result.reason
    assert judge("firesteel", ledger=ledger("triton:gemm"), cross_check="").passed


def test_given_profile_is_read(judge, tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": [{"name": "void marlin::Marlin", "cat": "kernel", "ts": 0, "dur": 1}]}')
    assert "marlin ran" in find_check(judge("vllm", path="cutlass", trace=str(trace))).words


def test_package_that_the_server_cannot_import_fails(judge):
    result = judge("vllm", log=MARLIN)
    assert not result.passed and "vllm cannot be imported by the server's Python" in result.reason
    assert result.facts["packages"]["torch"]


def test_engine_without_rules_is_not_judged(judge):
    result = judge("other")
    assert result.passed and not result.was_run and "no rules" in result.reason
