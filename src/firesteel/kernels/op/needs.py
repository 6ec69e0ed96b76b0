"""Requirements of implementations on the device: Triton or NVRTC, and a compute capability."""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import importlib.util

from firesteel.device import DeviceSpec
from firesteel.kernels.cuda.compile import lacks_nvrtc
from firesteel.kernels.op.op import Needs, capability


def triton_ready(major: int = 8, minor: int = 0) -> Needs:
    """Requires Triton, and a GPU of this compute capability or Triton's interpreter."""

    def needs(device: DeviceSpec) -> str | None:
        if importlib.util.find_spec("triton") is None:
            return "needs Triton, which is not installed"
        return None if interpreting() else capability(major, minor)(device)

    return needs


def interpreting() -> bool:
    """Returns whether this process interprets Triton kernels (TRITON_INTERPRET=1 at the first import of Triton)."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def cuda_ready(major: int = 9, minor: int = 0) -> Needs:
    """Requires a GPU of this compute capability, and NVRTC found by cuda.bindings."""

    def needs(device: DeviceSpec) -> str | None:
        return capability(major, minor)(device) or lacks_nvrtc()

    return needs


def hopper_ready() -> Needs:
    """Requires a GPU of compute capability 9.0, whose matrix instructions no other has, and NVRTC."""

    def needs(device: DeviceSpec) -> str | None:
        if device.capability != (9, 0):
            return f"needs an NVIDIA GPU of compute capability 9.0, this is {device.name}"
        return lacks_nvrtc()

    return needs
