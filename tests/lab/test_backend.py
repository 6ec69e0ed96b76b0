"""Rules that say which kernels must and must not have run; logs are synthetic, of lines that were published."""

import pytest

from firesteel.errors import UserError
from firesteel.lab.backend import RULES, Evidence, Rules, load_rules, summarise

ENGINES = sorted(path.stem for path in RULES.glob("*.toml"))
MARLIN = [
    "INFO [mxfp4.py:352] Using 'MARLIN' Mxfp4 MoE backend.",
    "WARNING Your GPU does not have native support for FP4 computation but FP4 quantization is being used. "
    "Weight-only FP4 compression will be used leveraging the Marlin kernel.",
]
ATTENTION = "Using FLASHINFER attention backend out of potential backends: ['FLASHINFER', 'TRITON_ATTN']."
CUTLASS = ["INFO Using 'CUTLASS_MXFP4_MXFP8' Mxfp4 MoE backend.", ATTENTION]


def ledger(*rows, device="NVIDIA H200"):
    ran = [{"op": op, "implementation": name, "activation": "bf16", "calls": 3} for op, name in rows]
    return {"device": device, "kernels": {}, "ran": ran}


def judge(engine, *, path="", require="", **evidence):
    return summarise(load_rules(engine), Evidence(**evidence), path=path, require=require)


@pytest.mark.parametrize("engine", ENGINES)
def test_rule_files_are_whole_and_have_a_path_without_a_name(engine):
    rules = load_rules(engine)
    assert rules.engine == engine
    for device in ("cpu", "gpu"):
        assert rules.find_path("", device).name == ""


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


def test_silence_is_no_pass():
    [fault] = judge("sglang", log=["hello"]).faults
    assert "nothing says which kernels sglang used" in fault


@pytest.mark.parametrize(
    ("line", "sign"),
    [
        ("Detected SM100 and MXFP4 quantization format for GPT-OSS model, enabling FlashInfer MXFP4 MOE kernel.",
         "flashinfer"),
        ("server_args=ServerArgs(moe_runner_backend='triton_kernel', ...)", "triton"),
        ("server_args=ServerArgs(moe_runner_backend='marlin', ...)", "marlin"),
    ],
)  # fmt: skip
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
        Rules.load(tmp_path / "x.toml")
