"""Expert matmuls for many tokens on Hopper: CUDA C++ with wgmma.

Pairs of tokens and experts are sorted by expert (`csrc/moe_place.cu`), and tokens are copied to their places
(`csrc/moe_gather.cu`) in the order that the matmuls read. A tile is a strip of an expert's rows and up to 192 of
its tokens (`csrc/moe_wgmma.cu`): each weight is widened once per tile. The results of a token's experts are added
in the order of its ranks, so the same inputs give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.kernels.cuda.source import CudaKernel
from firesteel.kernels.op.device_code import CudaCode
from firesteel.kernels.operands.weights import Experts
from firesteel.kernels.stream.build import build_kernel, keep, launch
from firesteel.kernels.stream.plan import FIRST, Machine, find_machine, machine_of
from firesteel.kernels.stream.refuse import refuse_expert_operands
from firesteel.kernels.stream.ring import align
from firesteel.kernels.stream.shapes import Sizes

BLOCK = 64  # rows of a wgmma, and columns of a stage
WARPGROUP = 128  # threads
PLACE_THREADS, GATHER_THREADS, SUM_THREADS = 1024, 128, 128
MOST_STAGES = 12
MOST_EXPERTS = 256
TOGETHER = 3  # steps per iteration; 45 steps of 64 columns are those of gpt-oss


@dataclass(frozen=True, slots=True)
class Shape:
    """How a matmul is divided into tiles."""

    warpgroups: int  # that multiply
    blocks: int  # of 64 rows, per warpgroup
    widths: tuple[int, ...]  # numbers of tokens that are multiplied at a time, descending
    sync_width: int = 0  # up to which mma multiplies instead of wgmma

    def __str__(self) -> str:
        return f"{self.strip * BLOCK}x{self.widths[0]}"

    @property
    def strip(self) -> int:
        """Blocks of a tile."""
        return self.warpgroups * self.blocks

    @property
    def threads(self) -> int:
        return WARPGROUP * (self.warpgroups + 1)

    def shared_bytes(self, stages: int, is_up: bool, columns: int, experts: int) -> int:
        rows = self.strip * BLOCK
        parts = (
            stages * self.widths[0] * 2 * BLOCK,
            stages * rows * BLOCK // 2,
            2 * (rows * (columns // 32 + 2) + 8 * (4 if is_up else self.widths[0])),  # `Strip`
            8 * (2 * stages + 4),
            4 * (len(self.widths) + 1 + 4 * experts),  # `Tiles` in csrc/moe_tiles.cuh
        )
        return sum(map(align, parts))

    def plan_ring(self, is_up: bool, columns: int, experts: int, limit: int) -> tuple[int, int]:
        """Returns how many stages fit `limit` bytes of shared memory, and how many steps a loop handles at a time.

        A loop waits for all of its stages, so there must be twice as many. Without a stage that fits, both are 0.
        """
        for together in (TOGETHER, 1):
            for stages in range(MOST_STAGES // together * together, 2 * together - 1, -together):
                fits = self.shared_bytes(stages, is_up, columns, experts) <= limit
                if fits and columns // BLOCK % together == 0:
                    return stages, together
        return 0, 0


def _list_widths(most: int, least: int, by: int = 8) -> tuple[int, ...]:
    return tuple(range(most, least - 1, -by))


# The largest average number of pairs per expert, with the shapes of gate and up and of down: the fastest of those
# tried on an H200 (docs/prompts.md). With few tokens more warps widen weights, with many a warp has more sums.
SHAPES = (
    (16, Shape(6, 1, _list_widths(24, 8), sync_width=24), Shape(5, 1, _list_widths(32, 8), sync_width=24)),
    (32, Shape(6, 1, _list_widths(40, 8)), Shape(5, 1, _list_widths(64, 16))),
    (48, Shape(3, 2, _list_widths(64, 16)), Shape(5, 1, _list_widths(64, 16))),
    (72, Shape(3, 2, _list_widths(96, 32)), Shape(3, 1, _list_widths(192, 48, 16))),
    (math.inf, Shape(2, 2, _list_widths(144, 64)), Shape(3, 1, _list_widths(144, 64))),
)
WIDEST = max(shape.widths[0] for _, *shapes in SHAPES for shape in shapes)


def choose_shapes(pairs: int, experts: int) -> tuple[Shape, Shape]:
    return next((up, down) for most, up, down in SHAPES if pairs <= most * experts)


def refuse(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, activation: str) -> str | None:
    """Returns why these operands cannot be computed in this way, or None."""
    if activation != "bf16":
        return f"computes with bf16 activations, not {activation}"
    if x.shape[0] == 0:
        return "wants at least one token"
    num_experts, rows = experts.gate_up_bias.shape
    inter, hidden = rows // 2, x.shape[1]
    if hidden % BLOCK or inter % BLOCK:
        return f"reads weights by {BLOCK} rows and columns, not {hidden} and {inter}"
    if num_experts > MOST_EXPERTS:
        return f"is for up to {MOST_EXPERTS} experts, not {num_experts}"
    if ids.numel() >= 1 << 16:
        return f"is for fewer than {1 << 16} pairs, not {ids.numel()}"
    return refuse_expert_operands(x, ids, weights, experts) or (
        None if not x.is_cuda else _refuse_memory(find_machine(x.device), ids, experts)
    )


def _refuse_memory(machine: Machine, ids: Tensor, experts: Experts) -> str | None:
    """Returns why the machine has too little shared memory for one of the matmuls, or None."""
    num_experts, rows = experts.gate_up_bias.shape
    up, down = choose_shapes(ids.numel(), num_experts)
    for shape, is_up, columns in ((up, True, experts.down_bias.shape[1]), (down, False, rows // 2)):
        if shape.plan_ring(is_up, columns, num_experts, machine.shared_bytes) == (0, 0):
            needed = shape.shared_bytes(2, is_up, columns, num_experts)
            return f"needs {needed} bytes of shared memory, this GPU has {machine.shared_bytes}"
    return None


def count_places(pairs: int, experts: int) -> int:
    """Returns the number of places: an expert's begin at a multiple of 8, and tiles read past the last one."""
    return -(-(pairs + 7 * min(pairs, experts)) // 8) * 8 + WIDEST


@keep
def plan(machine: Machine, shape: Shape, *, is_up: bool, columns: int, rows: int, experts: int) -> CudaKernel:
    """Plans one matmul: an expert has `rows` of `columns` weights."""
    stages, together = shape.plan_ring(is_up, columns, experts, machine.shared_bytes)
    shared_bytes = shape.shared_bytes(stages, is_up, columns, experts)
    defines: dict[str, int | str] = {
        "IS_UP": is_up,
        "NUM_COLUMNS": columns,
        "NUM_ROWS": rows,
        "EXPERTS": experts,
        "NUM_WARPGROUPS": shape.warpgroups,
        "NUM_BLOCKS": shape.blocks,
        "STRIP_BLOCKS": shape.strip,
        "NUM_STAGES": stages,
        "STEPS_TOGETHER": together,
        "SYNC_WIDTH": shape.sync_width,
        "WIDTHS": ",".join(map(str, shape.widths)),
        "SHARED_BYTES": shared_bytes,
    }
    return build_kernel("moe_wgmma", defines, threads=shape.threads, shared_bytes=shared_bytes)


@keep
def plan_place(*, experts: int) -> CudaKernel:
    return build_kernel("moe_place", {"EXPERTS": experts}, threads=PLACE_THREADS)


@keep
def plan_gather(*, hidden: int, active: int) -> CudaKernel:
    return build_kernel("moe_gather", {"HIDDEN": hidden, "ACTIVE": active}, threads=GATHER_THREADS)


@keep
def plan_sum(*, hidden: int, active: int) -> CudaKernel:
    return build_kernel("moe_sum_narrow", {"HIDDEN": hidden, "ACTIVE": active}, threads=SUM_THREADS)


def list_plans(capability: tuple[int, int], sizes: Sizes) -> Iterator[CudaCode]:
    """Lists the kernels that such a GPU launches for experts of these sizes."""
    if capability != FIRST:
        return
    machine, hidden, inter, experts = machine_of(capability), sizes.hidden, sizes.intermediate, sizes.experts
    for name, is_up, columns, rows in (("up", True, hidden, 2 * inter), ("down", False, inter, hidden)):
        for shape in dict.fromkeys(up if is_up else down for _, up, down in SHAPES):
            kernel = plan(machine, shape, is_up=is_up, columns=columns, rows=rows, experts=experts)
            yield CudaCode(variant=f"cuda:wgmma {name} {shape}", kernel=kernel)
    yield CudaCode(variant="cuda:wgmma place", kernel=plan_place(experts=experts))
    yield CudaCode(variant="cuda:wgmma gather", kernel=plan_gather(hidden=hidden, active=sizes.active))
    yield CudaCode(variant="cuda:wgmma sum", kernel=plan_sum(hidden=hidden, active=sizes.active))


def run(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float) -> Tensor:
    """Returns y [T, H] of moe_matmul. Each kernel but the first starts before the one ahead of it has ended."""
    (tokens, hidden), active, machine = x.shape, ids.shape[1], find_machine(x.device)
    num_experts, rows = experts.gate_up_bias.shape
    inter, pairs = rows // 2, ids.numel()
    num_places = count_places(pairs, num_experts)

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=x.device)

    places, order = empty(pairs, dtype=torch.int32), empty(num_places, dtype=torch.int32)
    starts, counts = empty(num_experts, dtype=torch.int32), empty(num_experts, dtype=torch.int32)
    sorted_weights = empty(num_places, dtype=torch.float32)
    gathered, inner = (empty(columns // BLOCK, num_places, BLOCK, dtype=x.dtype) for columns in (hidden, inter))
    parts, y = empty(pairs, hidden, dtype=x.dtype), torch.empty_like(x)
    place, chunks = plan_place(experts=num_experts), -(-pairs // PLACE_THREADS)
    launch(place, (chunks,), (ids, weights, places, order, sorted_weights, starts, counts, pairs), False)
    gather = plan_gather(hidden=hidden, active=active)
    launch(gather, (tokens,), (x, ids, places, gathered, num_places), True)
    up, down = choose_shapes(pairs, num_experts)
    sizes, grid, sorting = {"experts": num_experts}, (machine.num_sms,), (starts, counts, order, sorted_weights)
    kernel = plan(machine, up, is_up=True, columns=hidden, rows=rows, **sizes)
    of_up = (experts.gate_up_codes, experts.gate_up_scales, experts.gate_up_bias)
    launch(kernel, grid, (gathered, *sorting, *of_up, inner, limit, num_places), True, tile=up)
    kernel = plan(machine, down, is_up=False, columns=inter, rows=hidden, **sizes)
    of_down = (experts.down_codes, experts.down_scales, experts.down_bias)
    launch(kernel, grid, (inner, *sorting, *of_down, parts, limit, num_places), True, tile=down)
    launch(plan_sum(hidden=hidden, active=active), (tokens,), (parts, ids, y), True)
    return y
