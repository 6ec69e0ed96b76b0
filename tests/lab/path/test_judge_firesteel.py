"""Slots of our own engine, by its ledger, and of our plugin in vLLM, by the lines of its ranks."""

import pytest

from firesteel.lab.path.slots import SlotState
from firesteel.lab.verdict import Verdict
from tests.lab.path import evidence_lines as lines
from tests.lab.path.evidence_lines import failed, judge, ledger, values, vllm

PASSED, FAILED, UNPROVEN, NOT_APPLICABLE = Verdict


@pytest.mark.parametrize("name", ["vllm-0.32-cpu-plugin.log", "vllm-0.28-cpu-plugin.log"])
def test_real_log_of_the_plugin_is_green_by_its_rules_and_red_by_those_of_stock_vllm(name):
    log = lines.read_log(name)
    table = judge("vllm+firesteel", log=log, machine="cpu")
    assert table.verdict is PASSED, [row.in_words() for row in table.rows]
    assert values(table) == {
        "moe": "firesteel:reference",
        "dense": "firesteel:reference",
        "attention": "firesteel:reference",
        "sinks": "on",
        "activation": "bf16",
        "kv": "bf16",
    }
    assert {"moe", "dense", "attention"} <= failed(judge("vllm", log=log, machine="cpu"))
    for path in ("cpu", "marlin", "triton", "cutlass", "trtllm", "native-fp4"):
        assert judge("vllm", log=log, machine="cpu", path=path).verdict is not PASSED
    assert {"moe", "attention"} <= failed(judge("vllm+firesteel", log=log))  # plain torch beside a GPU


def plugin(experts="cuda:even", prompts="bf16[bf16]", *more):
    return vllm(lines.PLUGIN.format(0, 1, experts, prompts), lines.GRAPHS, *more)


def test_plugin_on_a_gpu_is_green():
    table = judge("vllm+firesteel", log=plugin())
    assert table.verdict is PASSED, [row.in_words() for row in table.rows]
    assert values(table)["moe"] == "firesteel:cuda:even+firesteel:triton:gemm"


@pytest.mark.parametrize(
    ("slot", "log"),
    [
        ("moe", plugin("reference")),
        ("moe", plugin("cuda", "bf16[bf16]", lines.MARLIN)),
        (
            "moe",
            plugin("cuda", "bf16[bf16]", "WARNING firesteel: decoding steps of 3 requests run op by op: no plan"),
        ),
        ("attention", plugin("cuda", "bf16[bf16]", lines.FLASHINFER)),
        ("sinks", [line.replace("sinks=on", "sinks=off") for line in plugin()]),
    ],
)
def test_one_planted_fallback_of_the_plugin_is_caught(slot, log):
    assert failed(judge("vllm+firesteel", log=log)) == {slot}


def test_path_cuda_of_the_plugin_needs_replayed_steps():
    log = vllm(lines.PLUGIN.format(0, 1, "cuda", "bf16[bf16]"))
    assert judge("vllm+firesteel", path="cuda", log=log).verdict is UNPROVEN
    op_by_op = "INFO firesteel: steps so far: 14 x decoding step op by op, not in a graph"
    assert failed(judge("vllm+firesteel", path="cuda", log=[*log, op_by_op])) == {"graphs"}
    replayed = "INFO firesteel: steps so far: 3 x prompt graph of 256, 13 x decode graph of 4"
    assert judge("vllm+firesteel", path="cuda", log=[*log, replayed]).verdict is PASSED


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        ("mxfp8[native-fp4]", PASSED),
        ("mxfp8[native-fp4+none]", PASSED),
        ("mxfp8[bf16+native-fp4]", FAILED),
        ("bf16[bf16]", FAILED),
        ("mxfp8[int8]", UNPROVEN),
    ],
)
def test_native_fp4_of_the_plugin_is_judged_by_its_machine_code(row, verdict):
    table = judge("vllm+firesteel", path="native-fp4", log=plugin("cuda", row))
    assert table.verdict is verdict, [row.in_words() for row in table.rows]


def test_own_engine_is_green_on_a_gpu_and_on_a_cpu():
    table = judge("firesteel", ledger=ledger(*lines.FAST))
    assert table.verdict is PASSED
    assert values(table) == {
        "moe": "triton:gemm+cuda:even",
        "dense": "triton:gemm",
        "attention": "triton:prefill",
        "sinks": "on",
        "graphs": "on",
        "activation": "mxfp8",
        "kv": "bf16",
    }
    rows = [(op, "reference", "bf16") for op in ("moe_matmul", "linear", "attention")]
    on_cpu = judge("firesteel", ledger=ledger(*rows, device="CPU", graphs=0, kv="float32"), machine="cpu")
    assert on_cpu.verdict is PASSED and on_cpu.slots["graphs"].state is SlotState.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("row", "value", "verdict"),
    [
        (("moe_matmul", "cuda:wgmma_fp8", "fp8", "none", "fp8"), "fp8", PASSED),
        (("moe_matmul", "reference", "fp8"), "emulated", FAILED),
    ],
)
def test_experts_in_fp8_are_seen_and_told_from_emulated_ones(row, value, verdict):
    table = judge("firesteel", ledger=ledger(row, ("linear", "triton:gemm", "bf16"), ("attention", "triton", "")))
    assert values(table)["activation"] == value and table.verdict is verdict


@pytest.mark.parametrize(
    ("slot", "rows", "fields"),
    [
        ("moe", [("moe_matmul", "reference", "bf16")], {}),
        ("dense", [("linear", "reference", "bf16")], {}),
        ("attention", [("decode_attention", "reference", "")], {}),
        ("activation", [("moe_matmul", "triton:gemm", "mxfp8", "bf16")], {}),
        ("sinks", [], {"sinks": False}),
        ("graphs", [], {"graphs": 0}),
        ("kv", [], {"kv": "float8_e4m3fn"}),
    ],
)
def test_one_planted_fallback_of_our_own_engine_is_caught(slot, rows, fields):
    expect = {"graphs": "graphs=on", "kv": "kv=bf16"}.get(slot, "")
    path = "native-fp4" if slot == "activation" else ""
    table = judge("firesteel", path=path, expect=expect, ledger=ledger(*lines.FAST, *rows, **fields))
    assert failed(table) == {slot} and table.slots[slot].cure
    assert judge("firesteel", path=path, expect=expect, ledger=ledger(*lines.FAST)).verdict is PASSED


def test_older_server_that_does_not_state_its_sinks_is_unproven():
    content = ledger(*lines.FAST)
    del content["sinks"]
    table = judge("firesteel", ledger=content)
    assert table.verdict is UNPROVEN and "newer server" in table.slots["sinks"].cure


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([("moe_matmul", "triton:gemm", "mxfp8", "native-fp4")], PASSED),
        ([("moe_matmul", "triton:gemm", "mxfp8", "native-fp4"), ("linear", "cuda", "bf16", "bf16")], PASSED),
        ([("moe_matmul", "triton:gemm", "mxfp8", "none", "bf16")], FAILED),
        ([("moe_matmul", "triton:gemm", "mxfp4", "native-fp4", "bf16")], FAILED),
        ([("moe_matmul", "triton:gemm", "bf16", "bf16")], FAILED),
        ([("moe_matmul", "cuda", "mxfp8", "int8")], UNPROVEN),  # bytes lose nothing, and prove nothing
        ([("attention", "triton", "", "bf16")], UNPROVEN),
    ],
)
def test_native_fp4_of_our_own_engine_is_judged_by_its_machine_code(rows, verdict):
    assert judge("firesteel", path="native-fp4", ledger=ledger(*rows)).verdict is verdict
