"""Whether CUDA C++ can be compiled and run here; knows no op."""

from __future__ import annotations

from firesteel.device import DeviceSpec
from firesteel.kernels.cuda_compile import lacks_nvrtc
from firesteel.kernels.op import Needs, capability


def cuda_ready(major: int = 9, minor: int = 0) -> Needs:
    """The device is a GPU of this compute capability, and cuda.bindings finds NVRTC."""

    def needs(device: DeviceSpec) -> str | None:
        return capability(major, minor)(device) or lacks_nvrtc()

    return needs
