"""Level 1.5: a planted fallback fails it."""

import dataclasses
import json

import pytest

from firesteel.device import find_device
from firesteel.lab.client.api import Api
from firesteel.lab.level_result import parse_level
from firesteel.lab.levels.kernel_path import check_kernel_path
from firesteel.lab.path.imports import ServerImports
from firesteel.lab.path.ledger import parse_ledger
from firesteel.lab.servers.supervisor import SupervisedServer
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict
from tests.lab.contexts import make_context
from tests.lab.path.evidence_lines import LLAMA

MARLIN = "INFO 11-18 12:00:00 [mxfp4.py:352] Using 'MARLIN' Mxfp4 MoE backend."
GB10 = (12, 1)
NOT_ASKED = ServerImports()


@pytest.fixture
def judge(fake, tmp_path, monkeypatch):
    """judge("vllm", log=..., ledger=...): the level's result for such a server; on a CPU without `capability`.

    Its Python is not asked for packages unless `imports` is None, because that takes a second.
    """

    def run(kind, *, log="", ledger=None, cross_check=None, capability=None, imports=NOT_ASKED, words=(), **fields):
        machine = dataclasses.replace(find_device("cpu"), capability=capability)
        monkeypatch.setattr("firesteel.lab.levels.kernel_path.find_device", lambda: machine)
        if imports is not None:
            monkeypatch.setattr("firesteel.lab.servers.target.find_imports", lambda place, names: imports)
        command = fake()
        command = dataclasses.replace(command, words=(*command.words, *words))
        with SupervisedServer(command, tmp_path) as server:
            target = Target(api=Api.of(server.command.url), kind=kind, folder=tmp_path, model="x", server=server)
            target.identify()
            with server.log.open("a") as file:
                file.write(log + "\n")
            monkeypatch.setattr(Target, "read_ledger", lambda self: parse_ledger(ledger))
            spec = LabSpec(quick=True, **fields)
            return check_kernel_path(make_context(target, spec, cross_check=cross_check))

    return run


def ledger(implementation, device="NVIDIA H200"):
    """The experts ran by this implementation, the rest by Triton."""
    ran = {"moe_matmul": implementation, "linear": "triton:gemm", "attention": "triton:prefill"}
    rows = [{"op": op, "implementation": name, "activation": "bf16", "calls": 1} for op, name in ran.items()]
    return {"device": device, "kernels": {}, "ran": rows, "sinks": True, "graphs": 4}


def find_check(result, check="moe"):
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


def test_python_that_does_not_answer_leaves_imports_unjudged(judge):
    """It read as "no Python packages", and passed."""
    row = find_check(judge("vllm", imports=ServerImports(interpreter="/v/python")), "imports")
    assert row.verdict is Verdict.UNPROVEN and row.words == "/v/python did not say what it imports"


@pytest.mark.parametrize(("flags", "verdict"), [((), Verdict.PASSED), (("--cpu-moe",), Verdict.FAILED)])
def test_flags_of_the_servers_process_are_evidence(judge, flags, verdict):
    row = find_check(judge("llamacpp", log="\n".join(LLAMA), capability=GB10, words=flags))
    assert row.verdict is verdict and ("command: " in row.words) == bool(flags)


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


def test_marlin_in_the_log_fails_if_another_path_was_requested(judge):
    for wanted in ({"path": "native-fp4"}, {"expect": "moe=cutlass"}):
        result = judge("vllm", log=MARLIN, **wanted)
        row = find_check(result)
        assert result.failed and row.verdict is Verdict.FAILED and "moe=marlin" in row.words
        assert "--moe-backend flashinfer_cutlass" in row.cure and row.cure in result.reason
    assert find_check(judge("vllm", log=MARLIN, path="marlin")).passed


def test_marlin_in_the_log_is_a_fallback_on_a_gb10(judge):
    result = judge("vllm", log=MARLIN, capability=GB10)
    assert find_check(result).verdict is Verdict.FAILED and result.slots.slots["moe"].value == "marlin"


def test_every_slot_that_counts_is_a_check_and_the_table_is_in_the_result(judge):
    result = judge("firesteel", ledger=ledger("triton:gemm"), capability=(9, 0))
    assert [row.check for row in result.checks][:5] == ["moe", "dense", "attention", "sinks", "graphs"]
    assert result.passed and result.reason.startswith("moe=triton:gemm, dense=triton:gemm")
    assert parse_level(result.as_dict()).slots == result.slots


@pytest.mark.parametrize("wanted", [{}, {"path": "native-fp4"}, {"expect": "moe=cutlass"}])
def test_silent_log_is_not_judged_whatever_was_requested(judge, wanted):
    row = find_check(judge("vllm", log="hello", **wanted))
    assert row.verdict is Verdict.UNPROVEN and "moe was not seen" in row.words and "--trace" in row.cure


def test_cpu_fails_on_a_machine_with_a_gpu(judge):
    log = "INFO 11-18 12:00:00 [cpu.py:80] Using CPU_ATTN backend."
    row = find_check(judge("vllm", log=log, capability=(9, 0)), "attention")
    assert row.verdict is Verdict.FAILED and "attention=cpu_attn" in row.words
    assert find_check(judge("vllm", log=log), "attention").passed


def test_variable_of_the_process_that_switches_sinks_off_fails(judge, monkeypatch):
    monkeypatch.setenv("VLLM_ATTENTION_SINKS", "false")
    row = find_check(judge("vllm", log=MARLIN), "sinks")
    assert row.verdict is Verdict.FAILED and "environment: VLLM_ATTENTION_SINKS=false" in row.words


def test_server_behind_a_url_has_no_log_and_is_not_judged(fake, tmp_path, monkeypatch):
    """With sinks off it was green."""
    monkeypatch.setattr(
        "firesteel.lab.levels.kernel_path.find_device", lambda: pytest.fail("the server may be elsewhere")
    )
    with SupervisedServer(fake(), tmp_path) as server:
        target = Target(api=Api.of(server.command.url), kind="vllm", folder=tmp_path, model="x")
        target.identify()
        result = check_kernel_path(make_context(target, LabSpec(url=server.command.url, engine="vllm")))
    assert result.verdict is Verdict.UNPROVEN and "--engine" not in result.reason
    assert {row.state.value for row in result.slots.rows} == {"not seen"}


def test_reference_fails_if_another_implementation_was_required(judge):
    result = judge("firesteel", ledger=ledger("reference"), flags=("--require", "moe=triton:gemm"))
    assert result.failed and "moe_matmul=triton:gemm was required, but reference ran" in result.reason
    assert judge("firesteel", ledger=ledger("triton:gemm"), flags=("--require", "moe=triton:gemm")).passed
    unknown = find_check(judge("vllm", log=MARLIN, flags=("--require", "moe=triton")), "requirements")
    assert unknown.verdict is Verdict.UNPROVEN and "no ledger" in unknown.words


def test_op_outside_of_the_slots_in_plain_torch_fails_on_a_gpu(judge):
    content = ledger("triton:gemm")
    content["ran"].append({"op": "rms_norm", "implementation": "reference"})
    row = find_check(judge("firesteel", ledger=content), "ops")
    assert row.verdict is Verdict.FAILED and row.words == "plain torch ran for rms_norm"
    content["device"] = "CPU"
    assert "ops" not in [row.check for row in judge("firesteel", ledger=content).checks]


def test_difference_found_by_the_profiler_fails(judge):
    result = judge("firesteel", ledger=ledger("triton:gemm"), cross_check="gemv: 3 launches, the profiler saw 0")
    assert result.failed and "the profiler saw 0" in result.reason
    assert judge("firesteel", ledger=ledger("triton:gemm"), cross_check="").passed


def test_given_profile_is_read(judge, tmp_path):
    trace = tmp_path / "trace.json"
    event = {"name": "void marlin_moe_wna16::Marlin<1>", "cat": "kernel", "ts": 0, "dur": 1}
    trace.write_text(json.dumps({"traceEvents": [event]}))
    result = judge("vllm", path="cutlass", trace=str(trace))
    assert "moe=marlin" in find_check(result).words and result.facts["kernels"] == {event["name"]: 1}


def test_package_that_the_server_cannot_import_fails(judge):
    result = judge("vllm", log=MARLIN, imports=None)
    assert result.failed and "vllm cannot be imported by the server's Python" in result.reason
    imports = result.facts["imports"]
    assert imports["packages"]["torch"]["version"] and imports["packages"]["torch"]["file"].endswith("__init__.py")
    assert imports["packages"]["vllm"] is None and imports["packages"]["flashinfer"] is None


def test_missing_fused_moe_of_flashinfer_is_the_first_cure(judge):
    missing = ServerImports(has_fused_moe=False)
    result = judge("vllm", log=MARLIN, path="cutlass", imports=missing)
    assert find_check(result).cure.startswith("FlashInfer's fused MoE is missing: install")
    assert not find_check(judge("vllm", log=MARLIN, path="marlin", imports=missing)).cure


def test_missing_rank_of_the_plugin_fails(judge):
    line = "INFO firesteel: rank 0 of 2: gpt-oss plugin 0.1.0 in vLLM 0.28.0; moe_matmul=reference, sinks=on"
    assert "did not report rank 1 of 2" in find_check(judge("vllm+firesteel", log=line), "ranks").words


def test_engine_without_rules_is_not_judged(judge):
    result = judge("other", engine="thing {port}")
    assert result.verdict is Verdict.UNPROVEN and "not judged: there are no rules for thing" in result.reason
    assert "name it (--engine)" in judge("other", url="http://x:1").reason
