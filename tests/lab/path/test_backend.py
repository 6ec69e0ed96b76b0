"""EngineRules that say which kernels must and must not have run; logs are synthetic, of lines that were published."""

import dataclasses

import pytest

from firesteel.device import find_device
from firesteel.errors import UserError
from firesteel.lab.path.backend import RULES, EngineRules, PathEvidence, load_rules, summarise

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
SGLANG = "server_args=ServerArgs(model_path='x', device='{}', served_model_name='x', moe_runner_backend='{}', ...)"
HOPPER, B200, GB10 = (9, 0), (10, 0), (12, 1)


def machine(capability=None):
    """As a lab on such a GPU would find it; a CPU without one."""
    return dataclasses.replace(find_device("cpu"), name="synthetic", capability=capability)


def ledger(*rows, device="NVIDIA H200"):
    ran = [{"op": op, "implementation": name, "activation": "bf16", "calls": 3} for op, name in rows]
    return {"device": device, "kernels": {}, "ran": ran}


def proven(op, implementation, activation, *verdicts):
    codes = [
        {"kernel": "k", "tile": "", "artefact": str(n), "launches": 1, "verdict": one}
        for n, one in enumerate(verdicts)
    ]
    row = {"op": op, "implementation": implementation, "activation": activation, "calls": 3, "artefacts": codes}
    return {"device": "NVIDIA GB10", "kernels": {}, "ran": [row]}


def judge(engine, *, path="", require="", **evidence):
    return summarise(load_rules(engine), PathEvidence(**evidence), path=path, require=require)


@pytest.mark.parametrize("engine", ENGINES)
def test_rule_files_are_whole_and_have_a_path_without_a_name(engine):
    rules = load_rules(engine)
    assert rules.engine == engine
    for device, capability in (("cpu", None), ("gpu", HOPPER), ("gpu", GB10)):
        assert rules.find_path("", device, capability).name == ""


def test_engine_without_rules_has_none():
    assert load_rules("other") is None


def test_marlin_turns_the_native_path_red_and_its_own_green():
    wanted = judge("vllm", path="native-fp4", log=MARLIN)
    assert "block-scaled did not run" in wanted.faults and any("marlin ran" in one for one in wanted.faults)
    assert not judge("vllm", path="marlin", log=MARLIN).faults


def test_attention_lines_and_lists_of_candidates_are_no_sign():
    candidates = "Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['TRITON', 'EMULATION', 'CUTLASS']"
    assert set(judge("vllm", log=[ATTENTION, candidates]).seen) == {"marlin"}
    assert not judge("vllm", log=[ATTENTION]).seen


def test_native_path_of_vllm_is_recognised_by_log_and_by_kernel_names():
    assert not judge("vllm", path="native-fp4", log=CUTLASS).faults
    kernels = {"cutlass::device_kernel<MainloopSm120ArrayTmaWarpSpecializedBlockScaled, SM120_16x8x64_TN_VS>": 600}
    assert not judge("vllm", path="native-fp4", kernels=kernels).faults
    assert judge("vllm", path="native-fp4", kernels={"void marlin::Marlin<bf16>": 3}).faults


def test_log_that_names_another_kernel_than_the_profile_is_red():
    found = judge("vllm", path="native-fp4", log=CUTLASS, kernels={"marlin_moe_wna16::Marlin<...>": 144})
    assert [one for one in found.faults if "marlin ran" in one and "144 launches" in one]


def test_emulation_is_red_without_any_path_asked_for():
    [fault] = judge("vllm", log=["Using 'EMULATION' Mxfp4 MoE backend"]).faults
    assert "emulation ran" in fault


@pytest.mark.parametrize("capability", [HOPPER, B200, GB10])
@pytest.mark.parametrize(
    ("engine", "log"), [("vllm", VLLM_CPU), ("llamacpp", LLAMA_CPU), ("sglang", [SGLANG.format("cpu", "auto")])]
)
def test_cpu_is_a_fallback_where_there_is_a_gpu_and_none_where_there_is_not(engine, log, capability):
    assert judge(engine, log=log, machine=machine(capability)).faults
    assert not judge(engine, log=log, machine=machine()).faults
    assert not judge(engine, log=log).faults  # a machine that is not known
    assert not judge(engine, log=log, path="cpu", machine=machine(capability)).faults


def test_llama_cpp_on_a_gpu_keeps_its_embedding_on_the_cpu_and_no_layer():
    assert not judge("llamacpp", log=LLAMA_GPU, machine=machine(HOPPER)).faults
    [fault] = judge("llamacpp", log=["offloaded 36/37 layers to GPU"], machine=machine(HOPPER)).faults
    assert "some-on-cpu ran: offloaded 36/37" in fault
    assert judge("llamacpp", log=["llama_model_load: using device CUDA0"], machine=machine(HOPPER)).faults
    assert judge("llamacpp", log=LLAMA_GPU, path="cpu", machine=machine(HOPPER)).faults


@pytest.mark.parametrize(
    ("engine", "line"), [("vllm", MARLIN[0]), ("vllm", MARLIN[1]), ("sglang", SGLANG.format("cuda", "marlin"))]
)
def test_marlin_is_a_fallback_where_the_gpu_multiplies_fp4(engine, line):
    for capability in (B200, GB10):
        assert any("marlin ran" in one for one in judge(engine, log=[line], machine=machine(capability)).faults)
        assert not judge(engine, log=[line], path="marlin", machine=machine(capability)).faults
    assert not judge(engine, log=[line], machine=machine(HOPPER)).faults


def test_warning_of_products_in_16_bits_is_enough_where_the_gpu_multiplies_fp4():
    line = "Your GPU does not have native support for FP4 computation but FP4 quantization is being used."
    [fault] = judge("vllm", log=[line], machine=machine(GB10)).faults
    assert "weight-only ran" in fault
    assert not judge("vllm", log=[line], machine=machine(HOPPER)).faults


@pytest.mark.parametrize("capability", [B200, GB10])
def test_native_path_is_green_without_being_asked_for(capability):
    assert not judge("vllm", log=CUTLASS, machine=machine(capability)).faults
    assert not judge("sglang", log=[SGLANG.format("cuda", "flashinfer_mxfp4")], machine=machine(capability)).faults


def test_of_a_long_line_the_part_that_says_it_is_shown():
    line = f"Initializing an engine with config: {'a=1, ' * 500}device_config=cpu, {'b=2, ' * 500}"
    [shown] = judge("vllm", log=[line]).seen["cpu"]
    assert "device_config=cpu" in shown and len(shown) < 400


def test_silence_is_no_pass():
    [fault] = judge("sglang", log=["hello"]).faults
    assert "nothing says which kernels sglang used" in fault


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
def test_lines_of_sglang_are_understood(line, sign):
    assert set(judge("sglang", log=[line]).seen) == {sign}


def test_llama_cpp_must_have_its_layers_on_the_gpu_and_be_built_for_fp4():
    on_gpu = ["load_tensors: offloaded 37/37 layers to GPU"]
    build = ["system_info: CUDA : ARCHS = 1210 | USE_GRAPHS = 1 | BLACKWELL_NATIVE_FP4 = 1 |"]
    assert not judge("llamacpp", path="native-fp4", log=on_gpu + build).faults
    assert judge("llamacpp", path="native-fp4", log=on_gpu).faults == ("native-fp4-build did not run",)
    assert judge("llamacpp", path="gpu", log=["load_tensors: offloaded 0/37 layers to GPU"]).faults


def test_reference_on_a_gpu_is_a_fallback_and_on_a_cpu_none():
    rows = [("linear", "triton:gemm"), ("moe_matmul", "reference")]
    assert [one for one in judge("firesteel", ledger=ledger(*rows)).faults if "reference ran: moe_matmul" in one]
    assert not judge("firesteel", ledger=ledger(("linear", "triton"), ("rope", "cuda"))).faults
    assert not judge("firesteel", ledger=ledger(("linear", "reference"), device="CPU")).faults


def test_requirement_holds_for_every_call_of_its_op():
    rows = [("moe_matmul", "triton:gemm"), ("moe_matmul", "triton:gemv"), ("linear", "triton")]
    assert not judge("firesteel", require="moe=triton", ledger=ledger(*rows)).faults
    [fault] = judge("firesteel", require="moe=triton:gemm", ledger=ledger(*rows)).faults
    assert fault == "moe_matmul=triton:gemm was asked for, triton:gemv ran"
    [fault] = judge("firesteel", require="attention=triton", ledger=ledger(*rows)).faults
    assert "attention did not run" in fault
    assert any("no ledger" in one for one in judge("vllm", require="moe=triton", log=MARLIN).faults)


def test_unknown_path_lists_those_there_are():
    with pytest.raises(UserError, match="marlin, triton, cutlass"):
        judge("vllm", path="magic", log=MARLIN)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('engine = "x"\npackages = []\n[[sign]]\nname = "a"\nlog = ["("]\n[[path]]\n', "a: '\\('"),
        ('engine = "x"\npackages = []\n[[sign]]\nname = "a"\n[[path]]\nmust = ["b"]\n', "speaks of b"),
        ('engine = "x"\n', "holds no rules"),
        ("nonsense", "holds no rules"),
    ],
)
def test_rule_file_with_a_mistake_is_refused_by_name(text, words, tmp_path):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(UserError, match=words):
        EngineRules.load(tmp_path / "x.toml")


def test_native_fp4_of_our_own_is_what_the_machine_code_says():
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
def test_bytes_are_as_good_as_block_scaled_products_and_nothing_else_is(verdict, is_seen):
    whole = proven("moe_matmul", "triton:gemm", "mxfp8", "native-fp4")
    whole["ran"] += proven("decode_experts", "cuda:even", "mxfp8", verdict)["ran"]
    faults = judge("firesteel", path="native-fp4", ledger=whole).faults
    assert ["widened" in fault for fault in faults] == [True] * is_seen


def test_a_required_verdict_is_held_to_the_machine_code_that_ran():
    def find(require, *verdicts):
        return judge(
            "firesteel", require=require, ledger=proven("moe_matmul", "triton:gemm", "mxfp8", *verdicts)
        ).faults

    are = "moe_matmul=triton@native-fp4 was asked for, the matrix instructions of its machine code are"
    assert find("moe=triton@fp8", "none", "fp8", None) == ()
    assert find("moe=triton@none", "none") == ()
    assert find("moe=triton@native-fp4", "none", "fp8", None, "bf16") == (f"{are} bf16, fp8",)
    assert find("moe=triton@native-fp4", "none") == (f"{are} none",)
    assert find("moe=triton@native-fp4") == (f"{are} none",)
