"""Plans of decode_attention: how many CTAs share the tokens of a kv head, and the kernel for that."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.kernels.cuda.geometry import PORTABLE_CLUSTER
from firesteel.kernels.cuda.source import CudaKernel
from firesteel.kernels.stream.build import build_kernel, keep
from firesteel.kernels.stream.plan import Machine
from firesteel.kernels.stream.ring import MOST_TOKENS

HEAD_DIM = 64
TILE = 16  # tokens that a warp reads at a time
STAGES = 2  # tiles in flight per warp
MOST_HEADS = 8  # query heads per kv head: columns of a product
WARPS = 8
PART_FLOATS = MOST_HEADS * (2 + HEAD_DIM)  # partial result of a CTA: per head the maximum, the sum, the values
MOST_PROGRAMS = 32  # CTAs that share a kv head: the one that joins their parts holds something of each in registers
SHORT = 12288  # the most tokens of a page table for which a cluster is best


@dataclass(frozen=True, slots=True)
class Sharing:
    """The number of CTAs that share the tokens of a kv head, and where their partial results are joined.

    The last CTA joins them in memory, or the CTAs of a cluster do: that is faster, but a cluster has to fit a part
    of the GPU.
    """

    programs: int = 1
    in_memory: bool = False

    def __str__(self) -> str:
        return f"{self.programs} in memory" if self.in_memory else f"cluster {self.programs}"


def share_tokens(machine: Machine, num_heads: int, most_held: int, window: int | None) -> Sharing:
    """Decides how kv heads are shared, so that all CTAs run at once: one that waits for an SM holds up the others.

    `num_heads` are those of all requests, `most_held` the tokens that the page table has room for.
    """
    if window is not None:
        return Sharing()
    most = min(MOST_PROGRAMS, max(1, machine.num_sms // num_heads))
    if most_held > SHORT and most > 1:
        return Sharing(most, in_memory=True)
    size = PORTABLE_CLUSTER
    while size > most:
        size //= 2
    return Sharing(size)


@keep
def kernel(
    machine: Machine, heads: int, kv_heads: int, sharing: Sharing, has_fp8_pages: bool = False
) -> CudaKernel:
    """Builds the kernel; fp8 tiles are half as large, so twice as many are in flight."""
    sizes = {"HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": HEAD_DIM, "MOST_REQUESTS": MOST_TOKENS}
    stages = 2 * STAGES if has_fp8_pages else STAGES
    shared_bytes = WARPS * stages * 2 * TILE * HEAD_DIM * (1 if has_fp8_pages else 2)
    tile = {
        "FP8_PAGES": has_fp8_pages,
        "NUM_WARPS": WARPS,
        "NUM_STAGES": stages,
        "NUM_PARTS": sharing.programs,
        "PART_FLOATS": PART_FLOATS,
        "JOINS_IN_MEMORY": sharing.in_memory,
        "SHARED_BYTES": shared_bytes,
        "CTAS_PER_SM": 2 if machine.is_large else 1,
    }
    return build_kernel("decode_attention", {**sizes, **tile}, threads=32 * WARPS, shared_bytes=shared_bytes)
