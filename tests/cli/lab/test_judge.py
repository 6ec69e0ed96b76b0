"""The verb `lab judge`: each planted fallback is caught, silence is unproven, the best configuration is green."""

import json

import pytest

from tests.lab.judge.compiled import make_library
from tests.lab.path import evidence_lines as lines
from tests.lab.path.evidence_lines import vllm

GOOD = vllm(lines.CUTLASS, lines.DENSE_MARLIN, lines.FLASHINFER, lines.GRAPHS)
BEST = "moe=cutlass,dense=marlin,attention=flashinfer,sinks=on,graphs=on,activation=mxfp8,kv=bf16"
SGLANG = {"device": "cuda", "attention": "triton", "eager": False, "moe": "flashinfer_mxfp4"}
GOOD_SGLANG = [lines.SGLANG.format(**SGLANG), lines.SGLANG_SM120, lines.SGLANG_GRAPHS]


@pytest.fixture
def judge(run, tmp_path):
    """judge(log, kernels, *flags): exit code and JSON, of a log and of a trace with these kernels."""

    def invoke(log, kernels, *flags):
        files = []
        if log is not None:
            files.append(tmp_path / "server.log")
            files[-1].write_text("\n".join(log))
        if kernels:
            events = [{"cat": "kernel", "name": name, "ts": 9 * n, "dur": 5} for n, name in enumerate(kernels)]
            files.append(tmp_path / "trace.json")
            files[-1].write_text(json.dumps({"traceEvents": events}))
        result = run("lab", "judge", *map(str, files), *flags, "--json")
        return result.exit_code, json.loads(result.stdout)

    return invoke


def test_best_published_configuration_is_green(judge):
    code, told = judge(lines.read_log("vllm-0.14-gb10.log"), lines.GB10_KERNELS, "--gpu", "gb10")
    assert code == 0 and told["verdict"] == "passed" and told["engine"] == "vllm"
    assert {name: row["value"] for name, row in told["slots"].items()} == {
        "moe": "cutlass",
        "dense": "marlin",
        "attention": "flashinfer",
        "sinks": "on",
        "graphs": "on",
        "activation": "mxfp8",
        "kv": "fp8",
    }
    assert judge(GOOD, lines.GB10_KERNELS, "--gpu", "gb10", "--expect", BEST)[0] == 0


@pytest.mark.parametrize(
    ("slot", "log", "kernels"),
    [
        ("moe", vllm(lines.MARLIN, lines.FLASHINFER, lines.GRAPHS), [lines.SINK_ATTENTION]),
        ("moe", GOOD, [*lines.GB10_KERNELS, lines.MOE_MARLIN]),
        ("dense", [*GOOD, "Using EmulationMxfp4LinearKernel for MXFP4 GEMM"], lines.GB10_KERNELS),
        ("attention", [*GOOD, "Using CPU_ATTN backend."], lines.GB10_KERNELS),
        ("sinks", [*GOOD, "Attention sinks are disabled"], lines.GB10_KERNELS),
        ("graphs", [*GOOD, "Cudagraph is disabled under eager mode"], lines.GB10_KERNELS),
        ("activation", [*GOOD, "Using 'FLASHINFER_CUTLASS_MXFP4_BF16' Mxfp4 MoE backend."], lines.GB10_KERNELS),
        ("kv", vllm(*GOOD[2:], kv="fp8"), lines.GB10_KERNELS),
    ],
)
def test_each_slot_with_one_planted_fallback_is_red_and_has_a_cure(judge, slot, log, kernels):
    code, told = judge(log, kernels, "--gpu", "gb10", "--expect", BEST)
    row = told["slots"][slot]
    assert code == 1 and row["verdict"] == "failed" and row["sightings"] and row["cure"]


@pytest.mark.parametrize(
    ("engine", "slot", "log", "expect"),
    [
        ("sglang", "moe", [lines.SGLANG.format(**{**SGLANG, "moe": "marlin"})], ""),
        ("sglang", "attention", [lines.SGLANG.format(**{**SGLANG, "attention": "torch_native"})], ""),
        ("sglang", "graphs", [lines.SGLANG.format(**{**SGLANG, "eager": True})], "graphs=on"),
        ("sglang", "kv", [*GOOD_SGLANG, "KV Cache is allocated. dtype: torch.float8_e4m3fn"], "kv=bf16"),
        ("llamacpp", "moe", [*lines.LLAMA, "load_tensors: offloaded 36/37 layers to GPU"], ""),
        ("llamacpp", "attention", [*lines.LLAMA, "llama_context: Flash Attention was auto, set to disabled"], ""),
        ("llamacpp", "graphs", [*lines.LLAMA, "ggml_cuda: disabling CUDA graphs due to GPU"], "graphs=on"),
        ("llamacpp", "kv", [*lines.LLAMA[:5], "llama_kv_cache: size = 1 MiB, K (q8_0): 1 MiB"], "kv=f16"),
    ],
)
def test_planted_fallback_of_a_peer_is_red_by_its_log_alone(judge, engine, slot, log, expect):
    code, told = judge(log, [], "--gpu", "12.1", *(("--expect", expect) if expect else ()))
    assert code == 1 and told["engine"] == engine and told["slots"][slot]["verdict"] == "failed"


def test_good_peers_are_green(judge):
    assert judge(GOOD_SGLANG, [], "--gpu", "gb10", "--path", "native-fp4")[0] == 0
    assert judge(lines.LLAMA, [], "--gpu", "gb10", "--path", "native-fp4")[0] == 0


@pytest.mark.parametrize("flags", [(), ("--engine", "vllm"), ("--engine", "vllm", "--path", "native-fp4")])
def test_silent_log_is_unproven(judge, flags):
    code, told = judge(["hello"], [], "--gpu", "gb10", *flags)
    assert code == 3 and told["verdict"] == "unproven" and not told["diagnoses"]
    assert bool(told["slots"]) == bool(flags)  # without an engine, no slot can be named


def test_compute_capability_of_a_log_counts_without_a_flag(judge):
    device = "ggml_cuda_init: found 1 CUDA devices:\n  Device 0: NVIDIA GB10, compute capability 12.1, VMM: yes"
    log = [*device.splitlines(), "print_info: arch = gpt-oss", "load_tensors: offloaded 0/37 layers to GPU"]
    assert judge(log, [])[1]["slots"]["moe"]["verdict"] == "failed"
    assert judge(log[2:], [])[1]["slots"]["moe"]["verdict"] == "passed"  # the machine is not known
    assert judge(log[2:], [], "--gpu", "cpu")[1]["slots"]["moe"]["verdict"] == "passed"


def test_log_of_a_dead_server_is_red_with_a_diagnosis(run, tmp_path):
    log = tmp_path / "x.log"
    log.write_text("\n".join([*GOOD, "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'"]))
    result = run("lab", "judge", str(log), "--gpu", "gb10", "--path", "native-fp4")
    assert result.exit_code == 1 and "TRITON_PTXAS_PATH" in result.output and "FAILED by log" in result.output


def test_library_of_another_gpu_is_red(run, tmp_path):
    old = make_library(tmp_path / "old.so", cubins=["sm_80"])
    make_library(tmp_path / "new.so", cubins=["sm_80", "sm_121a"])
    alone = run("lab", "judge", str(tmp_path / "new.so"), "--gpu", "gb10")
    assert alone.exit_code == 0, alone.output
    result = run("lab", "judge", str(tmp_path), "--gpu", "gb10", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 1
    assert {row["file"]: row["verdict"] for row in told["libraries"]} == {
        str(old): "failed",
        str(tmp_path / "new.so"): "passed",
    }
    assert run("lab", "judge", str(old)).exit_code == 3  # for no GPU


def test_ledger_of_our_engine_is_judged_by_the_same_slots(run, tmp_path):
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps(lines.ledger(*lines.FAST)))
    assert run("lab", "judge", str(path)).exit_code == 0
    path.write_text(json.dumps(lines.ledger(*lines.FAST, sinks=False)))
    assert run("lab", "judge", str(path)).exit_code == 1


def test_crash_bundle_is_red_with_its_cause(run, tmp_path):
    (tmp_path / "report.json").write_text(json.dumps({"cause": "SIGKILL", "surroundings": {}}))
    (tmp_path / "log.txt").write_text("\n".join(GOOD))
    result = run("lab", "judge", str(tmp_path), "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 1 and told["diagnoses"][0]["words"] == "SIGKILL" and told["engine"] == "vllm"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--gpu", "voodoo"), "gb10"),
        (("--engine", "nope"), "there are for firesteel, llamacpp"),
        (("--engine", "vllm", "--expect", "moe=nope"), "can never be seen"),
    ],
)
def test_wrong_flags_are_refused(run, tmp_path, flags, said):
    (tmp_path / "x.log").write_text("hello")
    assert said in str(run("lab", "judge", str(tmp_path / "x.log"), *flags).exception)


def test_expectations_about_libraries_alone_are_refused(run, tmp_path):
    library = make_library(tmp_path / "a.so", cubins=["sm_80"])
    assert "--expect" in str(run("lab", "judge", str(library), "--expect", "moe=cutlass").exception)
