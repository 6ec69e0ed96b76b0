"""Slots of SGLang and llama.cpp."""

import pytest

from firesteel.lab.verdict import Verdict
from tests.lab.path import evidence_lines as lines
from tests.lab.path.evidence_lines import HOPPER, failed, judge, values

PASSED, FAILED, UNPROVEN, NOT_APPLICABLE = Verdict


@pytest.mark.parametrize(
    ("name", "slot", "value"),
    [
        ("void mul_mat_q<(ggml_type)39, 128, false>(char const*)", "moe", "cuda:mmq"),
        ("void mul_mat_vec_q<(ggml_type)39, 1, true, false>(void const*)", "moe", "cuda:mmvq"),
        ("void mul_mat_vec_q_moe<(ggml_type)39, 4>", "moe", "cuda:mmvq"),
        ("void mul_mat_vec_q<(ggml_type)8, 1, false, false>", "dense", "cuda:mmvq"),
        ("void mul_mat_q<(ggml_type)8, 64, true>", "dense", "cuda:mmq"),
        ("void quantize_mmq_mxfp4(float const*)", "activation", "mxfp4"),
        ("quantize_q8_1(float const*, void*)", "activation", "q8_1"),
        ("void flash_attn_ext_f16<64, 64, 8, 8, false, false>", "attention", "flash"),
    ],
)
def test_kernels_of_llama_cpp_fall_in_the_right_slot(name, slot, value):
    assert values(judge("llamacpp", kernels={name: 3})) == {slot: value}


GOOD_SGLANG = [
    lines.SGLANG.format(device="cuda", attention="triton", eager=False, moe="flashinfer_mxfp4"),
    lines.SGLANG_SM120,
    lines.SGLANG_GRAPHS,
]


def test_sglang_with_flashinfer_cutlass_is_green():
    table = judge("sglang", log=GOOD_SGLANG, path="native-fp4")
    assert table.verdict is PASSED
    assert values(table) == {"moe": "cutlass", "attention": "triton", "graphs": "on", "activation": "mxfp8"}
    assert judge("sglang", log=GOOD_SGLANG).verdict is UNPROVEN  # sinks
    assert judge("sglang", log=GOOD_SGLANG, kernels={lines.SINK_ATTENTION: 3}).verdict is PASSED


@pytest.mark.parametrize(
    ("slot", "fields"),
    [
        ("moe", {"moe": "marlin"}),
        ("attention", {"attention": "torch_native"}),
        ("attention", {"device": "cpu"}),
        ("graphs", {"eager": True}),
    ],
)
def test_one_planted_fallback_of_sglang_is_caught(slot, fields):
    given = {"device": "cuda", "attention": "triton", "eager": False, "moe": "flashinfer_mxfp4", **fields}
    table = judge("sglang", log=[lines.SGLANG.format(**given)], expect="graphs=on" if slot == "graphs" else "")
    assert slot in failed(table) and table.slots[slot].cure


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (
            "Detected SM100 and MXFP4 quantization format for GPT-OSS model, enabling FlashInfer MXFP4 MOE kernel.",
            "trtllm",
        ),
        (
            "Detected Blackwell and MXFP4 quantization for GPT-OSS, enabling FlashInfer MXFP4 MOE kernel.",
            "trtllm",
        ),
        ("Detected GPT-OSS model, enabling triton_kernels MOE kernel.", "triton"),
        (
            "Detected GPT-OSS model on Blackwell with driver >= 595, using triton MOE kernel to avoid SIGSEGV.",
            "triton",
        ),
    ],
)
def test_wordings_of_sglang_are_known(line, value):
    assert values(judge("sglang", log=[line], capability=HOPPER))["moe"] == value


def test_llama_cpp_on_a_gpu_is_green_and_may_keep_its_embedding_on_the_cpu():
    table = judge("llamacpp", log=lines.LLAMA, path="native-fp4")
    assert table.verdict is PASSED
    assert values(table) == {
        "moe": "cuda",
        "dense": "cuda",
        "attention": "flash",
        "graphs": "on",
        "activation": "mxfp4",
        "kv": "f16",
    }


def test_log_of_a_run_of_llama_cpp_on_a_cpu_shows_its_path():
    table = judge("llamacpp", log=lines.read_log("llamacpp-2026-08-cpu.log"), machine="cpu")
    assert values(table) == {"moe": "cpu", "attention": "flash", "kv": "f16"}
    assert not failed(table)


def test_flags_that_keep_experts_on_the_cpu_are_no_fallback_on_a_machine_without_a_gpu():
    given = {"log": lines.read_log("llamacpp-2026-08-cpu.log"), "commands": ["llama-server --cpu-moe"]}
    assert not failed(judge("llamacpp", **given, machine="cpu"))
    assert failed(judge("llamacpp", **given, machine="")) == {"moe"}


def test_usual_log_of_llama_cpp_shows_nothing_and_the_cure_names_the_verbosity():
    table = judge("llamacpp", log=lines.read_log("llamacpp-2026-08-cpu-default.log"), machine="gpu")
    assert not values(table) and table.verdict is UNPROVEN
    assert "--verbosity 4" in table.slots["moe"].cure


def test_modules_of_llama_server_are_no_part_of_a_message():
    line = "0.00.002.201 I cmn  common_param: system_info: n_threads = 10 | CUDA : ARCHS = 1210 | USE_GRAPHS = 1 |"
    assert values(judge("llamacpp", log=[line], machine="gpu")) == {"graphs": "on"}


@pytest.mark.parametrize(
    "flags",
    [
        "--cpu-moe",
        "-cmoe",
        "-ncmoe 8",
        "--n-cpu-moe 12",
        "-ot exps=CPU",
        r"--override-tensor blk\.[0-9]\..*_exps=CPU",
    ],
)
def test_flags_that_keep_experts_on_the_cpu_are_a_fallback_though_all_layers_are_offloaded(flags):
    """At the verbosity that shows the layers, llama.cpp does not log which tensors stay behind."""
    command = f"llama-server --model M --port 81 {flags} -lv 4"
    assert failed(judge("llamacpp", log=lines.LLAMA, commands=[command])) == {"moe"}


@pytest.mark.parametrize("flags", ["--n-cpu-moe 0", "-ot exps=CUDA0", "--model /x/--cpu-moe.gguf", "-cmoed"])
def test_other_flags_are_not_taken_for_experts_on_the_cpu(flags):
    command = f"llama-server --model M --port 81 {flags} -lv 4"
    assert judge("llamacpp", log=lines.LLAMA, path="native-fp4", commands=[command]).verdict is PASSED


@pytest.mark.parametrize(
    ("slot", "line", "environment"),
    [
        ("moe", "load_tensors: offloaded 36/37 layers to GPU", {}),
        ("moe", "load_tensors: offloaded 0/37 layers to GPU", {}),
        ("moe", "tensor blk.3.ffn_up_exps.weight (120 MiB mxfp4) buffer type overridden to CPU", {}),
        ("moe", "llama_model_loader: tensor overrides to CPU are used with mmap enabled - consider using x", {}),
        ("moe", "", {"LLAMA_ARG_N_CPU_MOE": "4"}),
        ("attention", "llama_context: Flash Attention was auto, set to disabled", {}),
        ("attention", "resolve_fused_ops: Flash Attention not supported, set to disabled", {}),
        ("graphs", "ggml_cuda: disabling CUDA graphs due to GPU architecture", {}),
        ("graphs", "", {"GGML_CUDA_DISABLE_GRAPHS": "1"}),
        ("kv", "llama_kv_cache: size = 36.00 MiB ( 1024 cells), K (q8_0):  18.00 MiB, V (q8_0):", {}),
    ],
)
def test_one_planted_fallback_of_llama_cpp_is_caught(slot, line, environment):
    expect = {"graphs": "graphs=on", "kv": "kv=f16"}.get(slot, "")
    table = judge("llamacpp", log=[*lines.LLAMA, line], environment=environment, expect=expect)
    assert slot in failed(table) and table.slots[slot].cure
