"""Lines of logs, names of kernels and ledgers for tests of slots.

Real, but shortened: the files in `logs`. vllm-0.14-gb10.log is the published log of the fork for GB10 (pull request
31740 of vLLM, February 2026), the others are of runs of vLLM's CPU builds and, with Kindling on a CPU, with
`--verbosity 4` and without, of llama.cpp's sources of August 2026. Everything else is synthetic: wordings from the
sources of vLLM 0.10 to 0.32, SGLang 0.5.1 to 0.5.18 and llama.cpp b7900 and later, and names of kernels from
published profiles.
"""

from pathlib import Path

from firesteel.lab.path.engine_rules import load_rules
from firesteel.lab.path.evidence import PathEvidence
from firesteel.lab.path.judge import judge_slots
from firesteel.lab.path.ledger import parse_ledger

LOGS = Path(__file__).parent / "logs"
HOPPER, B200, GB10 = (9, 0), (10, 0), (12, 1)

RESOLVED = "INFO 11-18 12:00:00 [model.py:733] Resolved architecture: GptOssForCausalLM"
CONFIG = (
    "(EngineCore pid=7) INFO 11-18 12:00:00 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
    "model='x', dtype=torch.bfloat16, max_seq_len=4200, quantization=gpt_oss_mxfp4, enforce_eager={eager}, "
    "kv_cache_dtype={kv}, device_config={device}, structured_outputs_config=StructuredOutputsConfig(backend='auto')"
)
CUTLASS = "INFO 11-18 12:00:00 [mxfp4.py:499] Using 'FLASHINFER_CUTLASS_MXFP4_MXFP8' Mxfp4 MoE backend."
MARLIN = "INFO 11-18 12:00:00 [mxfp4.py:499] Using 'MARLIN' Mxfp4 MoE backend."
TRITON = "INFO 11-18 12:00:00 [mxfp4.py:499] Using 'TRITON' Mxfp4 MoE backend."
DENSE_MARLIN = "INFO 11-18 12:00:00 [__init__.py:1028] Using MarlinMxFp4LinearKernel for MXFP4 GEMM"
NO_FP4 = (
    "WARNING 11-18 12:00:00 [marlin_utils_fp4.py:355] Your GPU does not have native support for FP4 computation "
    "but FP4 quantization is being used. Weight-only FP4 compression will be used leveraging the Marlin kernel."
)
FLASHINFER = (
    "INFO 11-18 12:00:00 [cuda.py:507] Using FLASHINFER attention backend out of potential backends: "
    "['FLASHINFER', 'TRITON_ATTN']."
)
GRAPHS = "INFO 11-18 12:00:00 [gpu_model_runner.py:6582] Graph capturing finished in 6 secs, took 1.05 GiB"
# Kernels of the best published configuration on a GB10: CUTLASS for experts, Marlin for dense layers, FlashInfer's
# attention with sinks.
GROUPED = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<...>, "
    "cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm120ArrayTmaWarpSpecializedBlockScaled<2, 3, "
    "...>, cute::tuple<cutlass::float_e4m3_t, cutlass::float_ue8m0_t>, ... SM120_16x8x32_TN_VS<...>"
)
MOE_MARLIN = "void marlin_moe_wna16::Marlin<1125899906909960l, 562949953487106l, 128, 1, 8, 4, false, 4, 1, false>"
PLAIN_MARLIN = "void marlin::Marlin<1125899906909960l, 562949953487106l, 128, 1, 8, 4, false, 4, 1, false>"
SINK_ATTENTION = (
    "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<..., AttentionSink>, ...>"
)
QUANTISE = "void flashinfer::mxfp8_quantize_kernel<__nv_bfloat16>(...)"
GB10_KERNELS = {GROUPED: 72, PLAIN_MARLIN: 73, SINK_ATTENTION: 36, QUANTISE: 36}

PLUGIN = (
    "(Worker pid=3) INFO 11-18 12:00:00 [proof_line.py:36] firesteel: rank {} of {}: gpt-oss plugin 0.2.0 in vLLM "
    "0.28.0; attention=triton:decode[bf16], decode_experts={} mxfp8[int8], linear=triton:gemm bf16[bf16], "
    "moe_matmul=triton:gemm {}, sinks=on"
)
SGLANG = (
    "[2026-11-18 12:00:00] server_args=ServerArgs(model_path='x', device='{device}', kv_cache_dtype='auto', "
    "attention_backend='{attention}', disable_cuda_graph={eager}, moe_runner_backend='{moe}')"
)
SGLANG_SM120 = (
    "[2026-11-18 12:00:00] Detected SM120 and MXFP4 quantization format for GPT-OSS model, enabling FlashInfer "
    "CUTLASS MXFP4 MOE kernel."
)
SGLANG_GRAPHS = "[2026-11-18 12:00:09 TP0] Capture target decode CUDA graph begin. backend=full, bs=[1, 2]"
LLAMA = [  # the embedding stays on the CPU
    "print_info: arch                  = gpt-oss",
    "load_tensors: offloaded 37/37 layers to GPU",
    "load_tensors:   CPU_Mapped model buffer size =   586.82 MiB",
    "load_tensors:        CUDA0 model buffer size = 59369.01 MiB",
    "llama_context: flash_attn            = enabled",
    "llama_kv_cache: size =   36.00 MiB (  1024 cells,  18 layers,  1/1 seqs), K (f16):   18.00 MiB, V (f16):",
    "system_info: n_threads = 10 | CUDA : ARCHS = 1210 | USE_GRAPHS = 1 | BLACKWELL_NATIVE_FP4 = 1 |",
]
LLAMA_CPU = [
    "print_info: arch                  = gpt-oss",
    "load_tensors: offloaded 0/37 layers to GPU",
    "load_tensors:   CPU_Mapped model buffer size = 12109 MiB",
]


def read_log(name):
    return (LOGS / name).read_text(encoding="utf-8").splitlines()


def vllm(*lines, eager=False, kv="auto", device="cuda"):
    """A log of vLLM with gpt-oss, and these lines."""
    return [RESOLVED, CONFIG.format(eager=eager, kv=kv, device=device), *lines]


def ledger(*rows, device="NVIDIA GB10", sinks=True, graphs=4, kv="bfloat16"):
    """A ledger; rows are (op, implementation, activation, *verdicts)."""
    ran = [
        {
            "op": op,
            "implementation": implementation,
            "activation": activation,
            "calls": 3,
            "artefacts": [
                {"kernel": "k", "artefact": str(number), "verdict": verdict}
                for number, verdict in enumerate(verdicts)
            ],
        }
        for op, implementation, activation, *verdicts in rows
    ]
    return {"device": device, "ran": ran, "sinks": sinks, "graphs": graphs, "formats": {"kv": kv}}


FAST = (
    ("moe_matmul", "triton:gemm", "mxfp8", "native-fp4"),
    ("decode_experts", "cuda:even", "mxfp8", "int8"),
    ("linear", "triton:gemm", "bf16", "bf16"),
    ("attention", "triton:prefill", "", "bf16"),
)


def judge(engine, *, path="", expect="", machine="gpu", capability=GB10, **evidence):
    """judge("vllm", log=[...]): the slots of such a server, on a GB10 unless told otherwise."""
    evidence["ledger"] = parse_ledger(evidence.get("ledger"))
    seen = PathEvidence(machine=machine, capability=capability if machine == "gpu" else None, **evidence)
    rules = load_rules(engine)
    expectations = rules.find_expectations(seen.device, seen.capability, path=path, expect=expect)
    return judge_slots(seen, rules, expectations)


def values(table):
    """The values that were seen, by slot."""
    return {row.slot: row.value for row in table.rows if row.values}


def failed(table):
    """The slots that are contradicted."""
    return {row.slot for row in table.rows if row.state.value == "contradicted"}
