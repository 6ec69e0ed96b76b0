"""The device that computes and its properties."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from firesteel.device.host_memory import find_host_memory
from firesteel.errors import UserError

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    torch_device: torch.device
    name: str
    capability: tuple[int, int] | None  # None on a CPU
    num_sms: int
    l2_bytes: int
    memory_bytes: int
    is_unified: bool  # GPU and host share one memory, as on GB10

    @property
    def is_cuda(self) -> bool:
        return self.capability is not None

    @property
    def dtype(self) -> torch.dtype:
        """Type of activations: bf16 on a GPU, float32 on a CPU (bf16 matmuls crash on some CPUs)."""
        return torch.bfloat16 if self.is_cuda else torch.float32

    def use(self) -> None:
        """Makes this the current GPU of the thread: Triton launches there, whatever tensors it is given."""
        if self.torch_device.type == "cuda" and torch.cuda.current_device() != self.torch_device.index:
            torch.cuda.set_device(self.torch_device)


def find_device(name: str = "auto") -> DeviceSpec:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return DeviceSpec(
            torch_device=torch.device("cpu"),
            name="CPU",
            capability=None,
            num_sms=0,
            l2_bytes=0,
            memory_bytes=find_host_memory().total_bytes,
            is_unified=False,
        )
    if not torch.cuda.is_available():
        raise UserError(
            f"device {name} was requested, but torch {torch.__version__} sees no GPU; "
            "run `firesteel doctor` to see why, or use --device cpu"
        )
    device = torch.device(name if ":" in name else "cuda:0")
    if device.index >= torch.cuda.device_count():
        raise UserError(f"device {name} does not exist: torch sees {torch.cuda.device_count()} GPU(s)")
    facts = torch.cuda.get_device_properties(device)
    is_unified = bool(facts.is_integrated)
    return DeviceSpec(
        torch_device=device,
        name=facts.name,
        capability=(facts.major, facts.minor),
        num_sms=facts.multi_processor_count,
        l2_bytes=facts.L2_cache_size,
        memory_bytes=min(facts.total_memory, find_host_memory().total_bytes) if is_unified else facts.total_memory,
        is_unified=is_unified,
    )


@functools.cache
def find_capability(device: torch.device) -> tuple[int, int] | None:
    """Returns the compute capability of a GPU, None for a CPU."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


@functools.cache
def count_sms(device: torch.device) -> int:
    """Returns the number of the GPU's SMs, 1 for a CPU, where kernels are interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def available_bytes(device: DeviceSpec) -> int:
    """Returns the free memory; on unified memory that of the host, since the driver's figure is wrong there."""
    if not device.is_cuda or device.is_unified:
        return find_host_memory().available_bytes
    return torch.cuda.mem_get_info(device.torch_device)[0]
