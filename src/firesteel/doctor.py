"""Examines the machine: versions and their pairing, GPU, compilers, and the implementations that would run."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
import sysconfig
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from firesteel.device import GIB, DeviceSpec, available_bytes, find_device
from firesteel.kernels import Kernels
from firesteel.kernels.cuda.compile import lacks_nvrtc, nvrtc_architectures, nvrtc_version
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.libraries.package import describe_libraries
from firesteel.kernels.operands.activation import BLOCK_SCALED_TRITON
from firesteel.kernels.tiles.tuned import find_shipped
from firesteel.surroundings import installed
from firesteel.vllm_plugin.refusal.state import PluginState, find_state

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
# torch minor version -> the Triton its CUDA builds bring
TRITON_OF_TORCH = {(2, 11): (3, 6), (2, 12): (3, 7), (2, 13): (3, 7), (2, 14): (3, 8), (2, 15): (3, 9)}
PACKAGES = ("firesteel", "torch", "triton", "numpy", "safetensors", "tokenizers", "huggingface_hub")
FIRST_WITH_CUDA_KERNELS = (9, 0)  # compute capability
NATIVE_FP4_IN_VLLM = "for native FP4 of prompts, set FIRESTEEL_ACTIVATION=mxfp8, which rounds decoded tokens, too"
FOR_NATIVE_FP4 = (
    "for native FP4 of prompts, install firesteel in an environment without vLLM, or with vLLM 0.33 (docs/vllm.md)"
)
LOST = "decode steps of 1 to 8 requests run without their fused CUDA kernels, and `prove` cannot check those"


class FindingStatus(Enum):
    OK = "ok"
    NOTE = "note"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    status: FindingStatus
    found: str
    cure: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Facts about the machine that the checks judge."""

    python: tuple[int, int]
    torch: str
    torch_cuda: str | None
    triton: str | None
    driver: str | None
    device: DeviceSpec
    available_bytes: int
    compiler: str | None
    python_header: Path
    cuda_bindings: str | None
    nvrtc: str | None  # None: it cannot be used
    nvrtc_architectures: tuple[int, ...]
    lacks_nvrtc: str | None  # why NVRTC cannot be used
    vllm: PluginState | None = None  # None: not installed

    @property
    def lacks_block_scaling(self) -> bool:
        """The GPU multiplies MXFP4 by block-scaled instructions, which this Triton does not use."""
        return self.is_sm12x and self.triton is not None and version(self.triton) < BLOCK_SCALED_TRITON

    @property
    def is_sm12x(self) -> bool:
        return self.device.capability is not None and self.device.capability[0] == 12


def examine() -> list[Finding]:
    machine = look()
    return [*judge(machine), *locate_packages(), *choices(machine.device)]


def look() -> MachineFacts:
    device = find_device("auto")
    return MachineFacts(
        python=sys.version_info[:2],
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        triton=installed("triton"),
        driver=driver_version(),
        device=device,
        available_bytes=available_bytes(device),
        compiler=shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"),
        python_header=Path(sysconfig.get_paths()["include"]) / "Python.h",
        cuda_bindings=installed("cuda-bindings"),
        nvrtc=None if lacks_nvrtc() else nvrtc_version(),
        nvrtc_architectures=() if lacks_nvrtc() else nvrtc_architectures(),
        lacks_nvrtc=lacks_nvrtc(),
        vllm=find_state(),
    )


def judge(machine: MachineFacts) -> list[Finding]:
    return [
        judge_python(machine),
        judge_torch(machine),
        judge_triton(machine),
        judge_pairing(machine),
        judge_cuda(machine),
        judge_gpu(machine),
        judge_memory(machine),
        judge_compiler(machine),
        judge_headers(machine),
        judge_nvrtc(machine),
        judge_vllm(machine),
    ]


def judge_python(machine: MachineFacts) -> Finding:
    found = f"{machine.python[0]}.{machine.python[1]} on {platform.machine()}"
    if machine.python < OLDEST_PYTHON:
        return Finding("Python", FindingStatus.FAIL, found, "install Python 3.11 or later")
    return Finding("Python", FindingStatus.OK, found)


def judge_torch(machine: MachineFacts) -> Finding:
    build = f"CUDA {machine.torch_cuda}" if machine.torch_cuda else "CPU build"
    found = f"{machine.torch} ({build})"
    if version(machine.torch) < OLDEST_TORCH:
        return Finding("torch", FindingStatus.FAIL, found, "pip install 'torch>=2.11'")
    return Finding("torch", FindingStatus.OK, found)


def judge_triton(machine: MachineFacts) -> Finding:
    if machine.triton is None:
        if machine.device.is_cuda:
            return Finding(
                "Triton", FindingStatus.FAIL, "not installed", "pip install triton, in the version for torch"
            )
        return Finding("Triton", FindingStatus.NOTE, "not installed; not needed on a CPU")
    if machine.lacks_block_scaling:
        words = f"{machine.triton}: computes MXFP4 in bf16 on SM12x, without saying so"
        if machine.vllm is not None:  # which pins torch
            return Finding("Triton", FindingStatus.NOTE, words, FOR_NATIVE_FP4)
        cure = "pip install 'torch>=2.14', which brings Triton 3.8 or later"
        return Finding("Triton", FindingStatus.FAIL, words, cure)
    return Finding("Triton", FindingStatus.OK, machine.triton)


def judge_pairing(machine: MachineFacts) -> Finding:
    check = "torch and Triton"
    if machine.triton is None or machine.torch_cuda is None:
        return Finding(check, FindingStatus.OK, "not applicable: not a CUDA build of torch with Triton")
    want, have = TRITON_OF_TORCH.get(version(machine.torch)), version(machine.triton)
    if want is None:
        return Finding(check, FindingStatus.NOTE, f"torch {machine.torch} is not in our table of pairs")
    pair = f"torch {machine.torch} is built with Triton {want[0]}.{want[1]}, installed is {machine.triton}"
    if want != have:
        return Finding(check, FindingStatus.FAIL, pair, f"pip install 'triton=={want[0]}.{want[1]}.*'")
    return Finding(check, FindingStatus.OK, pair)


def judge_cuda(machine: MachineFacts) -> Finding:
    if machine.device.is_cuda:
        found = f"driver {machine.driver or 'unknown'}, torch built for {machine.torch_cuda}"
        return Finding("CUDA", FindingStatus.OK, found)
    if machine.driver and machine.torch_cuda is None:
        return Finding(
            "CUDA",
            FindingStatus.FAIL,
            f"driver {machine.driver} is installed, but torch is a CPU build",
            "install a CUDA build of torch",
        )
    if machine.driver:
        return Finding(
            "CUDA",
            FindingStatus.FAIL,
            f"driver {machine.driver} is installed, but torch {machine.torch} sees no GPU",
            f"check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and that the driver supports CUDA {machine.torch_cuda}",
        )
    return Finding("CUDA", FindingStatus.NOTE, "no NVIDIA driver")


def judge_gpu(machine: MachineFacts) -> Finding:
    device = machine.device
    if device.capability is None:
        return Finding("GPU", FindingStatus.NOTE, "none: the CPU is used, in float32")
    found = f"{device.name}, sm_{device.capability[0]}{device.capability[1]}, {device.num_sms} SMs"
    if device.capability < (8, 0):
        cure = "compute capability 8.0 or later is required; --device cpu works"
        return Finding("GPU", FindingStatus.FAIL, found, cure)
    return Finding("GPU", FindingStatus.OK, found)


def judge_memory(machine: MachineFacts) -> Finding:
    device = machine.device
    kind = "unified memory, as the system counts it" if device.is_unified else "memory"
    available, total = machine.available_bytes / GIB, device.memory_bytes / GIB
    return Finding(kind, FindingStatus.OK, f"{available:.1f} GiB available of {total:.1f} GiB on {device.name}")


def judge_compiler(machine: MachineFacts) -> Finding:
    if machine.compiler:
        return Finding("C compiler", FindingStatus.OK, machine.compiler)
    if machine.device.is_cuda:
        return Finding(
            "C compiler", FindingStatus.FAIL, "none, and Triton builds its launcher with one", "install gcc"
        )
    return Finding("C compiler", FindingStatus.NOTE, "none; Triton needs one on a GPU")


def judge_headers(machine: MachineFacts) -> Finding:
    if machine.python_header.exists():
        return Finding("Python headers", FindingStatus.OK, str(machine.python_header))
    if machine.device.is_cuda:
        return Finding(
            "Python headers",
            FindingStatus.FAIL,
            f"{machine.python_header} is missing; Triton's launcher includes it",
            "install python3-dev",
        )
    return Finding(
        "Python headers", FindingStatus.NOTE, f"{machine.python_header} is missing; only Triton on a GPU needs it"
    )


def judge_nvrtc(machine: MachineFacts) -> Finding:
    """Checks NVRTC, which compiles the decode kernels, and cuda.bindings, which calls it."""
    check, capability = "NVRTC and cuda.bindings", machine.device.capability
    is_wanted = capability is not None and capability >= FIRST_WITH_CUDA_KERNELS
    if machine.lacks_nvrtc is not None:
        found = f"cuda-bindings {machine.cuda_bindings or 'not installed'}, no NVRTC: {LOST}"
        return Finding(check, FindingStatus.FAIL if is_wanted else FindingStatus.NOTE, found, machine.lacks_nvrtc)
    found = f"NVRTC {machine.nvrtc}, cuda-bindings {machine.cuda_bindings}"
    if (
        capability is not None
        and is_wanted
        and 10 * capability[0] + capability[1] not in machine.nvrtc_architectures
    ):
        unknown = f"{found}, which does not support sm_{capability[0]}{capability[1]}: {LOST}"
        return Finding(check, FindingStatus.FAIL, unknown, "install a newer nvidia-cuda-nvrtc")
    return Finding(check, FindingStatus.OK, found)


def judge_vllm(machine: MachineFacts) -> Finding:
    """Names the vLLM beside us, whether it uses the plugin, and what that cannot do here."""
    state = machine.vllm
    if state is None:
        return Finding("vLLM plugin", FindingStatus.OK, "not applicable: vLLM is not installed")
    if state.is_refused or not state.is_active:
        status = FindingStatus.FAIL if state.is_refused else FindingStatus.NOTE
        return Finding("vLLM plugin", status, state.words, state.cure)
    if machine.lacks_block_scaling:
        words = f"{state.words}; prompts run in bf16: native FP4 needs Triton 3.8, which vLLM brings from 0.33 on"
        return Finding("vLLM plugin", FindingStatus.NOTE, words, FOR_NATIVE_FP4)
    if machine.is_sm12x:
        words = f"{state.words}; by default prompts run in bf16, as decoded tokens do"
        return Finding("vLLM plugin", FindingStatus.NOTE, words, NATIVE_FP4_IN_VLLM)
    return Finding("vLLM plugin", FindingStatus.OK, state.words)


def locate_packages() -> list[Finding]:
    libraries = describe_libraries().items()
    return [*map(_locate, PACKAGES), *(Finding(f"library {name}", FindingStatus.OK, it) for name, it in libraries)]


def _locate(name: str) -> Finding:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return Finding(f"import {name}", FindingStatus.NOTE, "not found")
    found = f"{installed(name) or 'from source'} at {Path(spec.origin).parent}"
    return Finding(f"import {name}", FindingStatus.OK, found)


def choices(device: DeviceSpec) -> list[Finding]:
    why = f"first of what {device.name} can run, in measured order"
    rows = Kernels(device, {}, Ledger()).table()
    ops = [Finding(f"op {op}", FindingStatus.OK, f"{implementation} ({why})") for op, implementation in rows]
    return [*judge_tiles(device), *ops]


def judge_tiles(device: DeviceSpec) -> list[Finding]:
    """Names the shipped tiles that a GPU uses, or why none apply."""
    if not device.is_cuda:
        return []
    path, words = find_shipped(device)
    status, cure = (FindingStatus.NOTE, "firesteel tune --out FILE") if path is None else (FindingStatus.OK, "")
    return [Finding("tiles", status, words, cure)]


def version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Returns the version of the NVIDIA kernel module, which is present even if torch is not built for CUDA."""
    if not path.exists():
        return None
    words = path.read_text(encoding="utf-8").splitlines()[0].split()
    return next((word for word in words if word[0].isdigit()), "unknown")
