"""Rules about the kernels that must and must not run; the logs are synthetic, of published lines."""

import dataclasses

import pytest

from firesteel.device import find_device
from firesteel.errors import UserError
from firesteel.lab.path.backend import RULES, EngineRules, PathEvidence, load_rules, summarise
from firesteel.lab.path.ledger import parse_ledger

ENGINES = sorted(path.stem for path in RULES.glob("*.toml"))
MARLIN = [
    "INFO [mxfp4.py:352] Using 'MARLIN' Mxfp4 MoE backend.",
    "WARNING Your GPU does not have native support for FP4 computation but FP4 quantization is being used. "
    "Weight-only FP4 compression will be used leveraging the Marlin kernel.",
]
ATTENTION = "Using FLASHINFER attention backend out of potential backends: ['FLASHINFER', 'TRITON_ATTN']."
CUTLASS = ["INFO Using 'CUTLASS_MXFP4_MXFP8' Mxfp4 MoE backend.", ATTENTION]

VLLM_CPU = ["INFO [cpu.py:80] Using CPU_ATTN backend.", "INFO [core.py:98] ... device_config=cpu, ..."]
LLAMA_CPU = [
    "load_tensors: offloaded 0/37 layers to GPU",
    "load_tensors:   CPU_Mapped model buffer size = 12109 MiB",
]
LLAMA_GPU = [  # the embedding stays on the CPU
    "load_tensors: offloaded 37/37 layers to GPU",
    "load_tensors:   CPU_Mapped model buffer size =   586.82 MiB",
    "load_tensors:        CUDA0 model buffer size = 59369.01 MiB",
]
PLUGIN = (
    "(EngineCore pid=7) INFO [model.py:80] firesteel: rank {} of {}: gpt-oss plugin 0.2.0 in vLLM 0.28.0; "
    "linear=triton[bf16], decode_experts={}[int8]"
)
SGLANG = "server_args=ServerArgs(model_path='x', device='{}', served_model_name='x', moe_runner_backend='{}', ...)"
HOPPER, B200, GB10 = (9, 0), (10, 0), (12, 1)


def machine(capability=None):
    """The device as the lab would find it; a CPU without a capability."""
    return dataclasses.replace(find_device("cpu"), name="synthetic", capability=capability)


def ledger(*rows, device="NVIDIA H200"):
    ran = [{"op": op, "implementation": name, "activation": "bf16", "calls": 3} for op, name in rows]
    return {"device": device, "kernels": {}, "ran": ran}


def proven(op, implementation, activation, *verdicts):
    codes = [
        {"kernel": "k", "tile": "", "artefact": str(n), "launches": 1, "verdict": verdict}
        for n, verdict in enumerate(verdicts)
    ]
    row = {"op": op, "implementation": implementation, "activation": activation, "calls": 3, "artefacts": codes}
    return {"device": "NVIDIA GB10", "kernels": {}, "ran": [row]}


def judge(engine, *, path="", require="", **evidence):
    evidence["ledger"] = parse_ledger(evidence.get("ledger"))
    return summarise(load_rules(engine), PathEvidence(**evidence), path=path, require=require)


@pytest.mark.parametrize("engine", ENGINES)
def test_rule_files_are_complete_and_have_a_default_path(engine):
    rules = load_rules(engine)
    assert rules.engine == engine
    for device, capability in (("cpu", None), ("gpu", HOPPER), ("gpu", GB10)):
        assert rules.find_path("", device, capability).name == ""


def test_unknown_engine_has_no_rules():
    assert load_rules("other") is None


def test_marlin_fails_the_native_path_and_passes_its_own():
    wanted = judge("vllm", path="native-fp4", log=MARLIN)
    assert "block-scaled did not run" in wanted.faults and any("marlin ran" in fault for fault in wanted.faults)
    assert not judge("vllm", path="marlin", log=MARLIN).faults


def test_attention_lines_and_lists_of_candidates_are_not_signs():
    candidates = "Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['TRITON', 'EMULATION', 'CUTLASS']"
    assert set(judge("vllm", log=[ATTENTION, candidates]).seen) == {"marlin"}
    assert not judge("vllm", log=[ATTENTION]).seen


def test_native_path_of_vllm_is_recognised_by_log_and_by_kernel_names():
    assert not judge("vllm", path="native-fp4", log=CUTLASS).faults
    kernels = {"cutlass::device_kernel<MainloopSm120ArrayTmaWarpSpecializedBlockScaled, SM120_16x8x64_TN_VS>": 600}
    assert not judge("vllm", path="native-fp4", kernels=kernels).faults
    assert judge("vllm", path="native-fp4", kernels={"void marlin::Marlin<bf16>": 3}).faults


def test_contradiction_of_log_and_profile_fails():
    summary = judge("vllm", path="native-fp4", log=CUTLASS, kernels={"marlin_moe_wna16::Marlin<...>": 144})
    assert [fault for fault in summary.faults if "marlin ran" in fault and "144 launches" in fault]


def test_emulation_fails_without_a_requested_path():
    [fault] = judge("vllm", log=["Using 'EMULATION' Mxfp4 MoE backend"]).faults
    assert "emulation ran" in fault


@pytest.mark.parametrize("capability", [HOPPER, B200, GB10])
@pytest.mark.parametrize(
    ("engine", "log"), [("vllm", VLLM_CPU), ("llamacpp", LLAMA_CPU), ("sglang", [SGLANG.format("cpu", "auto")])]
)
def test_cpu_is_a_fallback_only_on_a_machine_with_a_gpu(engine, log, capability):
    assert judge(engine, log=log, machine=machine(capability)).faults
    assert not judge(engine, log=log, machine=machine()).faults
    assert not judge(engine, log=log).faults  # unknown machine
    assert not judge(engine, log=log, path="cpu", machine=machine(capability)).faults


def test_llama_cpp_on_a_gpu_may_keep_its_embedding_but_no_layer_on_the_cpu():
    assert not judge("llamacpp", log=LLAMA_GPU, machine=machine(HOPPER)).faults
    [fault] = judge("llamacpp", log=["offloaded 36/37 layers to GPU"], machine=machine(HOPPER)).faults
    assert "some-on-cpu ran: offloaded 36/37" in fault
    assert judge("llamacpp", log=["llama_model_load: using device CUDA0"], machine=machine(HOPPER)).faults
    assert judge("llamacpp", log=LLAMA_GPU, path="cpu", machine=machine(HOPPER)).faults


@pytest.mark.parametrize(
    ("engine", "line"), [("vllm", MARLIN[0]), ("vllm", MARLIN[1]), ("sglang", SGLANG.format("cuda", "marlin"))]
)
def test_marlin_is_a_fallback_on_a_gpu_with_fp4(engine, line):
    for capability in (B200, GB10):
        assert any("marlin ran" in fault for fault in judge(engine, log=[line], machine=machine(capability)).faults)
        assert not judge(engine, log=[line], path="marlin", machine=machine(capability)).faults
    assert not judge(engine, log=[line], machine=machine(HOPPER)).faults


def test_warning_about_16_bit_products_is_a_fallback_on_a_gpu_with_fp4():
    line = "Your GPU does not have native support for FP4 computation but FP4 quantization is being used."
    [fault] = judge("vllm", log=[line], machine=machine(GB10)).faults
    assert "weight-only ran" in fault
    assert not judge("vllm", log=[line], machine=machine(HOPPER)).faults


@pytest.mark.parametrize("capability", [B200, GB10])
def test_native_path_passes_without_being_requested(capability):
    assert not judge("vllm", log=CUTLASS, machine=machine(capability)).faults
    assert not judge("sglang", log=[SGLANG.format("cuda", "flashinfer_mxfp4")], machine=machine(capability)).faults


@pytest.mark.parametrize("capability", [None, HOPPER, GB10])
def test_plugin_in_vllm_passes_its_own_rules_and_fails_those_of_stock_vllm(capability):
    log = [PLUGIN.format(0, 1, "cuda"), ATTENTION]
    assert not judge("vllm+firesteel", log=log, machine=machine(capability)).faults
    [fault] = judge("vllm", log=log, machine=machine(capability)).faults
    assert fault.startswith("firesteel ran: ")


@pytest.mark.parametrize("path", ["", "cpu", "marlin", "triton", "cutlass", "flashinfer", "native-fp4"])
def test_no_path_of_stock_vllm_allows_the_plugin(path):
    log = [PLUGIN.format(0, 1, "cuda"), *MARLIN, *CUTLASS, *VLLM_CPU]
    assert any(fault.startswith("firesteel ran") for fault in judge("vllm", path=path, log=log).faults)


@pytest.mark.parametrize("log", [MARLIN, CUTLASS, VLLM_CPU, ["hello"]])
def test_stock_vllm_fails_the_rules_of_the_plugin(log):
    assert "firesteel did not run" in judge("vllm+firesteel", log=log).faults


def test_plugin_beside_kernels_of_vllm_fails():
    log = [PLUGIN.format(0, 1, "cuda"), *MARLIN]
    assert any("marlin ran" in fault for fault in judge("vllm+firesteel", log=log).faults)


def test_reference_in_the_plugin_is_a_fallback_on_a_gpu_only():
    log = [PLUGIN.format(0, 1, "reference")]
    [fault] = judge("vllm+firesteel", log=log, machine=machine(HOPPER)).faults
    assert fault.startswith("reference ran")
    assert not judge("vllm+firesteel", log=log, machine=machine()).faults


def test_path_cuda_of_the_plugin_needs_replayed_steps():
    log = [PLUGIN.format(0, 1, "cuda")]
    assert judge("vllm+firesteel", path="cuda", log=log).faults == ("plugin-graphs did not run",)
    replayed = [*log, "INFO firesteel: steps so far: 3 x prompt graph of 256, 13 x decode graph of 4"]
    assert not judge("vllm+firesteel", path="cuda", log=replayed).faults
    assert judge("vllm+firesteel", path="native-fp4", log=replayed).faults == ("plugin-block-scaled did not run",)
    refused = [*replayed, "WARNING firesteel: decoding steps of 3 requests run op by op: no plan"]
    [fault] = judge("vllm+firesteel", path="cuda", log=refused).faults
    assert fault.startswith("plugin-op-by-op ran")


@pytest.mark.parametrize("verdicts", ["native-fp4", "bf16+native-fp4", "native-fp4+none"])
def test_block_scaled_plugin_is_recognised_among_other_verdicts(verdicts):
    log = [PLUGIN.format(0, 1, "cuda").replace("[bf16]", f"[{verdicts}]")]
    assert not judge("vllm+firesteel", path="native-fp4", log=log).faults


def test_plugin_is_recognised_in_a_profile():
    assert not judge("vllm+firesteel", kernels={"decode_experts_even": 36}).faults
    assert judge("vllm", kernels={"decode_experts_even": 36}).faults


def test_rank_without_the_plugin_is_a_fault():
    """A node without firesteel would run vLLM's own gpt-oss as one of the ranks."""
    [fault] = judge("vllm+firesteel", log=[PLUGIN.format(rank, 4, "cuda") for rank in (0, 3)]).faults
    assert "did not report rank 1, 2 of 4" in fault and "RAY_DEDUP_LOGS=0" in fault
    assert not judge("vllm+firesteel", log=[PLUGIN.format(rank, 2, "cuda") for rank in (1, 0, 1)]).faults


def test_long_line_is_shortened_around_the_match():
    line = f"Initializing an engine with config: {'a=1, ' * 500}device_config=cpu, {'b=2, ' * 500}"
    [shown] = judge("vllm", log=[line]).seen["cpu"]
    assert "device_config=cpu" in shown and len(shown) < 400


def test_silent_log_fails():
    [fault] = judge("sglang", log=["hello"]).faults
    assert "nothing shows which kernels sglang used" in fault


@pytest.mark.parametrize(
    ("line", "sign"),
    [
        (
            "Detected SM100 and MXFP4 quantization format for GPT-OSS model, enabling FlashInfer MXFP4 MOE kernel.",
            "flashinfer",
        ),
        ("server_args=ServerArgs(moe_runner_backend='triton_kernel', ...)", "triton"),
        ("server_args=ServerArgs(moe_runner_backend='marlin', ...)", "marlin"),
    ],
)
def test_log_lines_of_sglang_are_recognised(line, sign):
    assert set(judge("sglang", log=[line]).seen) == {sign}


def test_llama_cpp_needs_its_layers_on_the_gpu_and_a_build_for_fp4():
    on_gpu = ["load_tensors: offloaded 37/37 layers to GPU"]
    build = ["system_info: CUDA : ARCHS = 1210 | USE_GRAPHS = 1 | BLACKWELL_NATIVE_FP4 = 1 |"]
    assert not judge("llamacpp", path="native-fp4", log=on_gpu + build).faults
    assert judge("llamacpp", path="native-fp4", log=on_gpu).faults == ("native-fp4-build did not run",)
    assert judge("llamacpp", path="gpu", log=["load_tensors: offloaded 0/37 layers to GPU"]).faults


def test_reference_is_a_fallback_on_a_gpu_only():
    rows = [("linear", "triton:gemm"), ("moe_matmul", "reference")]
    assert [
        fault for fault in judge("firesteel", ledger=ledger(*rows)).faults if "reference ran: moe_matmul" in fault
    ]
    assert not judge("firesteel", ledger=ledger(("linear", "triton"), ("rope", "cuda"))).faults
    assert not judge("firesteel", ledger=ledger(("linear", "reference"), device="CPU")).faults


def test_requirement_applies_to_every_call_of_its_op():
    rows = [("moe_matmul", "triton:gemm"), ("moe_matmul", "triton:gemv"), ("linear", "triton")]
    assert not judge("firesteel", require="moe=triton", ledger=ledger(*rows)).faults
    [fault] = judge("firesteel", require="moe=triton:gemm", ledger=ledger(*rows)).faults
    assert fault == "moe_matmul=triton:gemm was required, but triton:gemv ran"
    [fault] = judge("firesteel", require="attention=triton", ledger=ledger(*rows)).faults
    assert "attention did not run" in fault
    assert any("no ledger" in fault for fault in judge("vllm", require="moe=triton", log=MARLIN).faults)


def test_unknown_path_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="marlin, triton, cutlass"):
        judge("vllm", path="magic", log=MARLIN)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('engine = "x"\npackages = []\n[[sign]]\nname = "a"\nlog = ["("]\n[[path]]\n', "a: '\\('"),
        (
            'engine = "x"\npackages = []\n[[sign]]\nname = "a"\n[[path]]\nmust = ["b"]\n',
            "names b, which is not a sign",
        ),
        ('engine = "x"\n', "not a file of rules"),
        ("nonsense", "not a file of rules"),
    ],
)
def test_invalid_rule_file_is_refused_by_name(text, words, tmp_path):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(UserError, match=words):
        EngineRules.load(tmp_path / "x.toml")


def test_native_fp4_of_firesteel_is_judged_by_its_machine_code():
    assert not judge(
        "firesteel", path="native-fp4", ledger=proven("moe_matmul", "triton:gemm", "mxfp8", "native-fp4")
    ).faults
    widened = judge(
        "firesteel", path="native-fp4", ledger=proven("moe_matmul", "triton:gemm", "mxfp8", "none", "bf16")
    )
    assert "block-scaled did not run" in widened.faults
    assert "widened ran: moe_matmul=triton:gemm mxfp8 @bf16" in widened.faults
    partly = judge(
        "firesteel", path="native-fp4", ledger=proven("linear", "triton:gemm", "mxfp4", "native-fp4", "bf16")
    )
    assert partly.faults == ("widened ran: linear=triton:gemm mxfp4 @bf16 @native-fp4",)
    assert judge("firesteel", path="native-fp4", ledger=proven("attention", "triton", "", "bf16")).faults == (
        "block-scaled did not run",
    )


@pytest.mark.parametrize(("verdict", "is_seen"), [("int8", False), ("fp8", True), ("bf16", True), ("none", False)])
def test_int8_products_are_not_a_fallback_and_others_are(verdict, is_seen):
    whole = proven("moe_matmul", "triton:gemm", "mxfp8", "native-fp4")
    whole["ran"] += proven("decode_experts", "cuda:even", "mxfp8", verdict)["ran"]
    faults = judge("firesteel", path="native-fp4", ledger=whole).faults
    assert ["widened" in fault for fault in faults] == [True] * is_seen


def test_required_verdict_is_compared_with_the_machine_code():
    def find(require, *verdicts):
        return judge(
            "firesteel", require=require, ledger=proven("moe_matmul", "triton:gemm", "mxfp8", *verdicts)
        ).faults

    are = "moe_matmul=triton@native-fp4 was required, but the matrix instructions of its machine code are"
    assert find("moe=triton@fp8", "none", "fp8", None) == ()
    assert find("moe=triton@none", "none") == ()
    assert find("moe=triton@native-fp4", "none", "fp8", None, "bf16") == (f"{are} bf16, fp8",)
    assert find("moe=triton@native-fp4", "none") == (f"{are} none",)
    assert find("moe=triton@native-fp4") == (f"{are} none",)
