"""Known errors of engines: the lines of a log that show each, what happened, and the cure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogPattern:
    """A pattern of log lines that names a cause."""

    kind: str
    pattern: re.Pattern[str]
    words: str
    cure: str

    def find_lines(self, log: Sequence[str]) -> list[int]:
        """Returns the numbers of the lines that show it."""
        return [number for number, line in enumerate(log) if self.pattern.search(line)]


def _pattern(kind: str, pattern: str, words: str, cure: str) -> LogPattern:
    return LogPattern(kind, re.compile(pattern, re.IGNORECASE), words, cure)


# Answers of a running server are lost or wrong because of these.
SPOILING = ("harmony-parser",)
BUILD_CURE = (
    "build it for this GPU, on a GB10 with TORCH_CUDA_ARCH_LIST=12.1a (vLLM), FLASHINFER_CUDA_ARCH_LIST=12.1a or "
    "CMAKE_CUDA_ARCHITECTURES=121a-real (llama.cpp); `firesteel lab judge FOLDER --gpu gb10` lists what they hold"
)
SM12X_CURE = (
    "on SM12x use other kernels: --moe-backend flashinfer_cutlass --quantization-config.moe.activation mxfp8, or "
    "--moe-backend marlin (vLLM); --moe-runner-backend flashinfer_mxfp4 (SGLang 0.5.16 and later)"
)
# The first match counts: causes come before their consequences.
LOG_PATTERNS = (
    _pattern(
        "compiler-too-old",
        r"Value 'sm_\w+' is not defined for option 'gpu-name'|Unsupported gpu architecture|"
        r"SM 1[12]\.x requires CUDA|No supported CUDA architectures found for major versions \[[^\]]*\b12\b|"
        r"Unsupported \.version|nvrtc: error: invalid value for --gpu-architecture",
        "a compiler of CUDA code does not know this GPU",
        "use that of CUDA 12.9 or later: TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas (Triton's own is older), and "
        "CUDA_HOME=/usr/local/cuda for FlashInfer and nvcc",
    ),
    _pattern(
        "flashinfer-version",
        r"flashinfer-(cubin|jit-cache) version .* does not match flashinfer|"
        r"flashinfer.*(less than the minimum required|is not compatible with|version mismatch)|"
        r"cannot import name '\w+' from 'flashinfer|module 'flashinfer[\w.]*' has no attribute",
        "the installed FlashInfer does not fit",
        "install flashinfer-python, flashinfer-cubin and flashinfer-jit-cache in the version that the engine pins; "
        "FLASHINFER_DISABLE_VERSION_CHECK=1 only hides the difference",
    ),
    _pattern(
        "no-kernel-image",
        r"no kernel image is available|cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU",
        "a library has no machine code for this GPU",
        BUILD_CURE,
    ),
    _pattern(
        "driver-too-old",
        r"driver version is insufficient|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|compiled with an unsupported toolchain|"
        r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION|NVIDIA driver on your system is too old",
        "the driver is older than the CUDA libraries",
        "update the driver to that of the engine's CUDA version, or use a build for an older CUDA",
    ),
    _pattern(
        "unsupported-gpu",
        r"No supported CUDA architectures found for major versions|"
        r"(only supported|requires?|only supports?|supports? only)\b.{0,40}\b(SM ?_?10[03x]|compute capability 10)|"
        r"Arch conditional MMA instruction used without targeting|not supported on \.target|"
        r"tcgen05.*(not supported|unsupported)",
        "a kernel was chosen that only other GPUs can run, such as those of SM100",
        SM12X_CURE,
    ),
    _pattern(
        "no-backend",
        r"No \w+ MoE backend supports|MoE backend '?\w+'? does not support the deployment",
        "no kernel for the experts fits this GPU and these settings",
        SM12X_CURE,
    ),
    _pattern(
        "illegal-memory-access",
        r"illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|misaligned address|unspecified launch failure",
        "a kernel accessed memory outside its allocations (illegal memory access)",
        "run again with --debug, which names the launch that failed",
    ),
    _pattern(
        "memory-share",
        r"Free memory on device .*less than desired GPU memory utilization",
        "less memory is free than the share that the engine reserves",
        "lower --gpu-memory-utilization, or stop what holds the memory; on a GB10 the page cache counts as used: "
        "sync, then write 3 to /proc/sys/vm/drop_caches",
    ),
    _pattern(
        "cache-too-small",
        r"No available memory for the cache blocks|larger than the available KV cache memory|"
        r"Not enough memory\. Please try to increase --mem-fraction-static|estimated maximum model length is",
        "too little memory is left for the KV cache",
        "lower --max-model-len (vLLM) or --context-length (SGLang), or raise --gpu-memory-utilization or "
        "--mem-fraction-static",
    ),
    _pattern(
        "gpu-out-of-memory",
        r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaMalloc failed: out of memory",
        "the GPU's memory ran out",
        "use a shorter context, fewer sequences or a smaller share of memory for the cache",
    ),
    _pattern(
        "out-of-memory",
        r"\bMemoryError\b|Cannot allocate memory|std::bad_alloc|DefaultCPUAllocator: .*allocate",
        "the machine's memory ran out",
        "free memory, or use a smaller cache or model",
    ),
    _pattern(
        "disk-full",
        r"No space left on device|\bENOSPC\b|Disk quota exceeded",
        "a disk that the server writes to is full",
        "free space for its caches, its log and TMPDIR; in a container also /dev/shm (--shm-size)",
    ),
    _pattern(
        "illegal-instruction",
        r"Illegal instruction|SIGILL",
        "one of its processes used an instruction that this CPU lacks",
        "use a build for this CPU, or disable that instruction set (ONEDNN_MAX_CPU_ISA, --dtype float32)",
    ),
    _pattern(
        "fault",
        r"Fatal Python error: (Segmentation fault|Aborted|Bus error|Floating)|terminate called after throwing",
        "one of its processes crashed",
        "the stack is in its log",
    ),
    _pattern(
        "port-in-use",
        r"address already in use|EADDRINUSE|port \d+ is already|Cannot assign requested address|bind.*failed",
        "its port is taken by another process",
        "choose another port, or stop what listens there",
    ),
    _pattern(
        "vocabulary",
        r"error downloading or loading vocab|o200k_base\.tiktoken|openaipublic\.blob\.core",
        "openai-harmony could not load its vocabulary, which it downloads at the first use",
        "put o200k_base.tiktoken into a folder, and name that in TIKTOKEN_ENCODINGS_BASE",
    ),
    _pattern(
        "harmony-parser",
        r"unexpected tokens remaining in message header|Unexpected token \d+ while expecting start token",
        "openai-harmony refused the model's output, and the request failed",
        "use a version that survives this (vLLM pull request 47350); Marlin's experts on SM12x can cause it (vLLM "
        "issue 37030)",
    ),
    _pattern(
        "import-error",
        r"(ModuleNotFound|Import)Error:|cannot open shared object file|undefined symbol:|No module named",
        "a package or library is missing or incompatible",
        "install it into the environment of the server's Python",
    ),
    _pattern(
        "missing-model",
        r"no checkpoint|RepositoryNotFound|does not appear to have a file named|failed to load model|"
        r"is not a valid model identifier|is not a folder|"
        r"not in the local (Hugging Face )?cache|config\.json.*(not found|No such file)|"
        r"(No such file|not found).*(safetensors|gguf|config\.json)|neither a folder nor",
        "the model was not found",
        "check the name or path of the model",
    ),
)
