"""Slots of vLLM: every wording, the best published configuration, and each planted fallback."""

import pytest

from firesteel.lab.path.slots import SlotState
from firesteel.lab.verdict import Verdict
from tests.lab.path import evidence_lines as lines
from tests.lab.path.evidence_lines import GB10, HOPPER, failed, judge, values, vllm

PASSED, FAILED, UNPROVEN, NOT_APPLICABLE = Verdict

GOOD_VLLM = vllm(lines.CUTLASS, lines.DENSE_MARLIN, lines.FLASHINFER, lines.GRAPHS)


EXPECT = "moe=cutlass,dense=marlin,attention=flashinfer,graphs=on"


def test_published_log_of_the_best_configuration_on_a_gb10_is_green():
    """It was red: "marlin ran"."""
    log = lines.read_log("vllm-0.14-gb10.log")
    for wanted in ({"path": "native-fp4"}, {"expect": EXPECT}, {"expect": f"{EXPECT},activation=mxfp8,kv=fp8"}):
        table = judge("vllm", log=log, **wanted)
        assert table.verdict is PASSED, [row.in_words() for row in table.rows]
    assert values(table) == {
        "moe": "cutlass",
        "dense": "marlin",
        "attention": "flashinfer",
        "graphs": "on",
        "activation": "mxfp8",
        "kv": "fp8",
    }
    assert judge("vllm", log=log, kernels=lines.GB10_KERNELS).verdict is PASSED  # its trace shows sinks too


def test_without_a_request_the_same_log_is_unproven_because_nothing_shows_its_sinks():
    table = judge("vllm", log=lines.read_log("vllm-0.14-gb10.log"))
    assert table.verdict is UNPROVEN
    assert [row.slot for row in table.rows if row.counts and row.verdict is UNPROVEN] == ["sinks"]
    assert "--reference-url" in table.slots["sinks"].cure


@pytest.mark.parametrize("kernels", [None, lines.GB10_KERNELS])
def test_upstream_wording_of_the_best_configuration_is_green(kernels):
    for wanted in ({"path": "native-fp4"}, {"expect": EXPECT}):
        table = judge("vllm", log=GOOD_VLLM, kernels=kernels, **wanted)
        assert table.verdict is PASSED, [row.in_words() for row in table.rows]


def test_trace_alone_shows_experts_dense_layers_attention_and_sinks():
    table = judge("vllm", kernels=lines.GB10_KERNELS, expect=f"{EXPECT},sinks=on".replace(",graphs=on", ""))
    assert table.verdict is PASSED
    assert {row.sightings[0].source for row in table.rows if row.values} == {"trace"}


@pytest.mark.parametrize(
    ("slot", "log", "kernels", "environment"),
    [
        ("moe", vllm(lines.MARLIN, lines.FLASHINFER, lines.GRAPHS), {}, {}),
        ("moe", GOOD_VLLM, {lines.MOE_MARLIN: 144}, {}),
        ("moe", vllm("Using 'EMULATION' Mxfp4 MoE backend.", lines.FLASHINFER, lines.GRAPHS), {}, {}),
        ("dense", [*GOOD_VLLM, "Using EmulationMxfp4LinearKernel for MXFP4 GEMM"], {}, {}),
        ("attention", vllm(lines.CUTLASS, lines.GRAPHS, "Using CPU_ATTN backend."), {}, {}),
        ("sinks", GOOD_VLLM, {}, {"VLLM_ATTENTION_SINKS": "false"}),
        ("sinks", [*GOOD_VLLM, "WARNING Attention sinks are disabled by VLLM_ATTENTION_SINKS=false"], {}, {}),
    ],
)
def test_one_planted_fallback_of_vllm_is_caught_on_a_gb10(slot, log, kernels, environment):
    table = judge("vllm", log=log, kernels={lines.SINK_ATTENTION: 3, **kernels}, environment=environment)
    assert table.verdict is FAILED and failed(table) == {slot}
    row = table.slots[slot]
    assert row.reason and row.cure and row.sightings


@pytest.mark.parametrize(
    ("slot", "expect", "log"),
    [
        ("graphs", "graphs=on", vllm(lines.CUTLASS, eager=True)),
        ("graphs", "graphs=on", vllm(lines.CUTLASS, "INFO Cudagraph is disabled under eager mode")),
        ("activation", "activation=mxfp8", vllm(lines.MARLIN)),
        ("kv", "kv=fp8", vllm(lines.CUTLASS)),
        ("dense", "dense=flashinfer", GOOD_VLLM),
        ("attention", "attention=flash_attn", GOOD_VLLM),
    ],
)
def test_slot_that_differs_from_what_the_user_expects_is_caught(slot, expect, log):
    table = judge("vllm", log=log, expect=expect, capability=HOPPER)
    assert table.verdict is FAILED and failed(table) == {slot} and table.slots[slot].cure


def test_cure_names_the_flag_that_would_change_the_slot():
    table = judge("vllm", log=vllm(lines.MARLIN, eager=True), expect="moe=cutlass,graphs=on,kv=fp8")
    cures = {row.slot: row.cure for row in table.rows}
    assert "--moe-backend flashinfer_cutlass" in cures["moe"] and "--enforce-eager" in cures["graphs"]
    assert cures["kv"] == "--kv-cache-dtype fp8"


def test_marlin_for_experts_and_for_dense_layers_are_told_apart():
    assert values(judge("vllm", kernels={lines.PLAIN_MARLIN: 3})) == {"dense": "marlin"}
    assert values(judge("vllm", kernels={lines.MOE_MARLIN: 3})) == {"moe": "marlin", "activation": "bf16"}
    both = vllm(lines.CUTLASS, lines.DENSE_MARLIN, lines.NO_FP4)
    assert values(judge("vllm", log=both))["moe"] == "cutlass"


@pytest.mark.parametrize(
    ("log", "slot"),
    [
        ([lines.NO_FP4], "moe"),
        ([lines.CUTLASS, lines.NO_FP4], "dense"),
        ([lines.DENSE_MARLIN, lines.NO_FP4], "dense"),
        ([lines.MARLIN, lines.NO_FP4], "moe"),
    ],
)
def test_warning_about_fp4_belongs_to_the_slot_that_nothing_else_explains(log, slot):
    seen = values(judge("vllm", log=log))
    assert seen[slot] == "marlin" and [name for name in ("moe", "dense") if seen.get(name) == "marlin"] == [slot]


@pytest.mark.parametrize("capability", [lines.B200, GB10])
def test_marlin_for_experts_is_a_fallback_only_on_a_gpu_with_fp4(capability):
    log = vllm(lines.MARLIN, lines.FLASHINFER, lines.GRAPHS)
    assert failed(judge("vllm", log=log, capability=capability)) == {"moe"}
    assert not failed(judge("vllm", log=log, capability=capability, path="marlin"))
    assert not failed(judge("vllm", log=log, capability=HOPPER))


def test_lists_of_candidates_are_not_signs():
    line = "Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['TRITON', 'EMULATION', 'VLLM_CUTLASS']"
    assert values(judge("vllm", log=[line])) == {"moe": "marlin"}


@pytest.mark.parametrize(
    ("name", "slot"),
    [
        (lines.QUANTISE, "activation"),
        ("void tensorrt_llm::quantize_with_block_size<(BlockScaleQuantizationType)2, bf16, 32>", "activation"),
        ("void gemv_fp4_kernel<4, 128>", "moe"),
        ("void gemvx::kernel<int, int, __nv_bfloat16>", "dense"),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT", "dense"),
        ("kernel_unified_attention_2d", "attention"),
        ("void marlin::gptq_marlin_repack_kernel<256, 4, true>", None),
        ("void awq_marlin_repack_kernel<4>", None),
        ("void at::native::vectorized_elementwise_kernel<4>", None),
    ],
)
def test_kernels_of_vllm_fall_in_the_right_slot(name, slot):
    assert set(values(judge("vllm", kernels={name: 3}))) == ({slot} if slot else set())


# Wordings of every version about experts, with the value and the activations that they mean.
WORDINGS = [
    ("Using 'FLASHINFER_CUTLASS_MXFP4_MXFP8' Mxfp4 MoE backend.", "cutlass", "mxfp8"),
    ("Using 'FLASHINFER_CUTLASS_MXFP4_BF16' Mxfp4 MoE backend.", "cutlass", "bf16"),
    ("Using 'CUTLASS_MXFP4_MXFP4' Mxfp4 MoE backend.", "cutlass", "mxfp4"),
    ("Using FlashInfer MXFP4 MXFP8 CUTLASS backend for SM100", "cutlass", "mxfp8"),
    ("Using FlashInfer MXFP4 MXFP8 CUTLASS backend for Blackwell-class GPU", "cutlass", "mxfp8"),
    ("Using FlashInfer MXFP4 MXFP8 CUTLASS backend for SM12x", "cutlass", "mxfp8"),
    ("Using FlashInfer MXFP4 BF16 backend for SM90", "cutlass", "bf16"),
    ("[MXFP4] Using backend: CUTLASS (VLLM_MXFP4_BACKEND=CUTLASS)", "cutlass", "mxfp8"),
    ("[MXFP4] Auto-selected: cutlass (FlashInfer CUTLASS FP8xFP4 for SM12x)", "cutlass", "mxfp8"),
    ("Selected Mxfp4Backend.CUTLASS_BLACKWELL_FP4FP8", "cutlass", "mxfp8"),
    ("Using 'FLASHINFER_TRTLLM_MXFP4_MXFP8' Mxfp4 MoE backend.", "trtllm", "mxfp8"),
    ("Using 'FLASHINFER_TRTLLM_MXFP4_BF16' Mxfp4 MoE backend.", "trtllm", "bf16"),
    ("Using FlashInfer MXFP4 MXFP8 TRTLLM backend for SM100, for high concurrency", "trtllm", "mxfp8"),
    ("Enabling FlashInfer MXFP4 BF16 backend by default for Blackwell. For faster", "trtllm", "bf16"),
    ("Using 'MARLIN' Mxfp4 MoE backend.", "marlin", "bf16"),
    ("Using 'BATCHED_MARLIN' Mxfp4 MoE backend.", "marlin", "bf16"),
    ("Using Marlin backend", "marlin", "bf16"),
    ("[get_mxfp4_backend_with_lora] Using Marlin backend", "marlin", "bf16"),
    ("[MXFP4] Auto-selected: Marlin (universal fallback)", "marlin", "bf16"),
    ("Using 'TRITON_UNFUSED' Mxfp4 MoE backend.", "triton", "bf16"),
    ("Using Triton backend", "triton", "bf16"),
    ("Using 'B12X_MXFP4_MXFP8' Mxfp4 MoE backend.", "b12x", "mxfp8"),
    ("Using 'EMULATION' Mxfp4 MoE backend.", "emulation", "bf16"),
    ("Using 'DEEPGEMM_MXFP4' Mxfp4 MoE backend.", "deepgemm_mxfp4", None),
    ("Using 'CPU' Mxfp4 MoE backend.", "cpu", None),
    ("Using TRITON Unquantized MoE backend out of potential backends: ['TRITON'].", "unquantized", None),
]


@pytest.mark.parametrize(("line", "moe", "activation"), WORDINGS, ids=str)
def test_wordings_about_experts_from_vllm_0_10_to_0_32_are_known(line, moe, activation):
    prefix = "(EngineCore_DP0 pid=7) INFO 02-08 19:29:28 [mxfp4.py:311] "
    for log in ([line], [prefix + line]):
        seen = values(judge("vllm", log=log, machine=""))
        assert (seen["moe"], seen.get("activation")) == (moe, activation)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("Using AttentionBackendEnum.FLASHINFER backend.", "flashinfer"),
        ("Using FLASHINFER backend.", "flashinfer"),
        ("Using TRITON_ATTN attention backend out of potential backends: ['TRITON_ATTN'].", "triton_attn"),
        (
            "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'TRITON_ATTN']",
            "flash_attn",
        ),
        ("Using FlashInfer backend on V1 engine.", "flashinfer"),
        ("Using Triton backend on V1 engine.", "triton_attn"),
        ("Using Flash Attention backend on V1 engine.", "flash_attn"),
        ("Using TRTLLM attention (required for attention sinks).", "flashinfer"),
    ],
)
def test_wordings_about_attention_of_vllm_are_known_and_are_not_taken_for_experts(line, value):
    seen = values(judge("vllm", log=[f"INFO 11-18 12:00:00 [cuda.py:345] {line}"]))
    assert seen["attention"] == value and "moe" not in seen


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("vllm-0.32-cpu-llama.log", {"attention": "cpu_attn", "kv": "fp32"}),
        ("vllm-0.28-cpu-llama.log", {"attention": "cpu_attn", "kv": "fp32"}),
    ],
)
def test_real_log_of_a_llama_in_vllms_cpu_build_is_green_on_a_cpu_and_red_beside_a_gpu(name, seen):
    log = lines.read_log(name)
    table = judge("vllm", log=log, machine="cpu")
    assert table.verdict is PASSED and values(table) == seen
    states = {row.slot: row.state for row in table.rows}
    assert {states[slot] for slot in ("moe", "sinks", "graphs")} == {SlotState.NOT_APPLICABLE}
    assert failed(judge("vllm", log=log)) == {"attention"}
    assert failed(judge("vllm+firesteel", log=log, machine="cpu")) == {"attention"}  # the plugin did not run
    assert not failed(judge("vllm", log=log, path="cpu"))
