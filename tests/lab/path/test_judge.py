"""Slots of any engine: silence and stray words prove nothing, and the device decides what is a fallback."""

import pytest

from firesteel.lab.path.engine_rules import load_rules
from firesteel.lab.path.evidence import PathEvidence
from firesteel.lab.path.judge import judge_slots
from firesteel.lab.path.slots import SLOTS, SlotState
from firesteel.lab.verdict import Verdict
from tests.lab.path import evidence_lines as lines
from tests.lab.path.evidence_lines import GB10, HOPPER, failed, judge, values, vllm

PASSED, FAILED, UNPROVEN, NOT_APPLICABLE = Verdict


@pytest.mark.parametrize(
    ("capability", "version", "state"),
    [
        (GB10, "3.5.0", SlotState.CONTRADICTED),
        (GB10, "3.7.1+git1234", SlotState.CONTRADICTED),
        (GB10, "3.8.0", SlotState.SEEN),
        (GB10, "3.10.0", SlotState.SEEN),
        (GB10, None, SlotState.NOT_SEEN),
        (lines.B200, "3.5.0", SlotState.SEEN),
        (HOPPER, None, SlotState.SEEN),
    ],
)
@pytest.mark.parametrize(
    ("engine", "log"),
    [
        ("vllm", vllm(lines.TRITON)),
        ("sglang", [lines.SGLANG.format(device="cuda", attention="triton", eager=False, moe="triton_kernel")]),
    ],
)
def test_triton_below_3_8_is_a_bf16_fallback_on_sm12x(engine, log, capability, version, state):
    versions = {} if version is None else {"triton": version}
    row = judge(engine, log=log, capability=capability, versions=versions).slots["moe"]
    assert row.state is state
    if state is not SlotState.SEEN:
        assert "bf16" in row.in_words()
    assert judge(engine, log=log, capability=capability, versions=versions, path="triton").verdict is PASSED


STRAY = [
    "INFO [worker_base.py:317] Injected <class 'PluginWorker'> into <class 'vllm.v1.worker.cpu_worker.CPUWorker'>",
    "INFO Registered KV connector LMCacheConnector for vllm_cpu and cpu_worker",
    "INFO Overriding max cuda graph capture size to 1024 for performance.",
    "INFO Using HND KV cache layout for FLASHINFER backend.",
    "INFO The user asked: Using 'MARLIN' Mxfp4 MoE backend.",
    "WARNING Triton is installed, but doesn't include CPU backend. Disabling Triton.",
    "ERROR Mxfp4 MoE backend 'MARLIN' does not support the deployment configuration since kernel does not support",
    "DEBUG prompt: 'device_config=cpu enforce_eager=True offloaded 0/37 layers to GPU attention sinks'",
    "INFO non-default args: {'model': 'marlin-triton-cutlass', 'mxfp4_layers': 'moe'}",
    "NotImplementedError: No MXFP4 MoE backend supports it. Candidate backends were: ['TRITON', 'MARLIN', 'CPU']",
    "ValueError: CUTLASS_BLACKWELL_FP4FP8 does not support this device",
]


@pytest.mark.parametrize("engine", ["vllm", "vllm+firesteel", "sglang", "llamacpp"])
def test_stray_words_decide_nothing(engine):
    table = judge(engine, log=STRAY)
    assert not values(table) and table.verdict is UNPROVEN


@pytest.mark.parametrize("engine", ["vllm", "vllm+firesteel", "sglang", "llamacpp", "firesteel"])
def test_silent_evidence_is_unproven_whatever_is_expected(engine):
    for path in ("", "native-fp4"):
        table = judge(engine, log=["hello"], path=path)
        assert table.verdict is UNPROVEN and not failed(table)
        assert list(table.slots) == list(SLOTS)
    assert all(row.cure for row in table.rows if row.is_required)


@pytest.mark.parametrize(
    ("engine", "log"),
    [
        ("vllm", vllm("Using 'CPU' Mxfp4 MoE backend.", device="cpu")),
        ("llamacpp", lines.LLAMA_CPU),
        ("sglang", [lines.SGLANG.format(device="cpu", attention="intel_amx", eager=False, moe="auto")]),
    ],
)
def test_cpu_is_a_fallback_only_on_a_machine_with_a_gpu(engine, log):
    assert failed(judge(engine, log=log))
    assert not failed(judge(engine, log=log, machine="cpu"))
    assert not failed(judge(engine, log=log, machine=""))  # unknown
    assert judge(engine, log=log, path="cpu").verdict is PASSED


def test_slot_that_the_device_cannot_have_is_not_applicable_unless_the_user_wants_it():
    log = vllm(lines.FLASHINFER, device="cpu")
    row = judge("vllm", log=log, machine="cpu").slots["graphs"]
    assert row.verdict is NOT_APPLICABLE and "a CPU has no CUDA graphs" in row.in_words()
    wanted = judge("vllm", log=log, machine="cpu", expect="graphs=on").slots["graphs"]
    assert wanted.verdict is FAILED and "expected: on" in wanted.in_words()


def test_usual_expectations_follow_the_device_of_the_evidence():
    rules = load_rules("vllm")
    assert failed(judge_slots(PathEvidence(log=[lines.MARLIN], machine="gpu", capability=GB10), rules)) == {"moe"}
    assert not failed(judge_slots(PathEvidence(log=[lines.MARLIN]), rules))
