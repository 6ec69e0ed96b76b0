"""Device code of an op: kernels with everything needed to compile them for an absent GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firesteel.kernels.cuda.source import CudaKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCode:
    """A Triton kernel with the types and constants of one variant: enough to compile it for an absent GPU."""

    variant: str  # "triton:gemm mxfp8"
    kernel: Any  # what @triton.jit made
    signature: dict[str, str]  # argument -> "*bf16", "*u8", "i32", "fp32", ...; constants left out
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    enable_fp_fusion: bool = True  # products fused with sums, as launched

    @property
    def kernel_name(self) -> str:
        return str(self.kernel.__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaCode:
    """A kernel in CUDA C++ with its defines, threads and shared memory."""

    variant: str  # "cuda mxfp4 fc1"
    kernel: CudaKernel

    @property
    def kernel_name(self) -> str:
        return self.kernel.name
