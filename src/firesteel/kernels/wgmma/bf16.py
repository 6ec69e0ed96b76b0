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
MOST_PAIRS = (1 << 16) - 1  # numbered in 16 bits
TABLE_BYTES = 128  # of csrc/widen_e4m3.cuh
TOGETHER = 3  # steps per iteration; 45 steps of 64 columns are those of gpt-oss


@dataclass(frozen=True, slots=True)
class Shape:
    """How a matmul is divided into tiles."""

    warpgroups: int  # that multiply
    blocks: int  # of 64 rows, per warpgroup
    widths: tuple[int, ...]  # numbers of tokens that are multiplied at a time, descending
    sync_width: int = 0  # up to which mma multiplies instead of wgmma
    e4m3_columns: int = 0  # of the product per token; 0: one in bf16

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
        rows, is_e4m3 = self.strip * BLOCK, self.e4m3_columns > 0
        strip = rows * (columns // 32 + 2) + 8 * (4 if is_up else self.widths[0])
        parts = (
            stages * self.widths[0] * (self.e4m3_columns or 2) * BLOCK,
            stages * rows * BLOCK // 2,
            2 * (strip + (rows + 4 * self.widths[0] if is_e4m3 else 0)),  # `Strip`
            8 * (2 * stages + 4),
            4 * (len(self.widths) + 1 + 4 * experts),  # `Tiles` in csrc/moe_tiles.cuh
            TABLE_BYTES if is_e4m3 else 0,
        )
        return sum(map(align, parts))

    def list_defines(self, is_up: bool, columns: int, experts: int, limit: int) -> dict[str, int | str]:
        """Returns what the kernel is compiled with beside its sizes."""
        stages, together = self.plan_ring(is_up, columns, experts, limit)
        defines: dict[str, int | str] = {
            "NUM_WARPGROUPS": self.warpgroups,
            "NUM_BLOCKS": self.blocks,
            "STRIP_BLOCKS": self.strip,
            "NUM_STAGES": stages,
            "STEPS_TOGETHER": together,
            "SYNC_WIDTH": self.sync_width,
            "WIDTHS": ",".join(map(str, self.widths)),
            "SHARED_BYTES": self.shared_bytes(stages, is_up, columns, experts),
        }
        return defines | ({"E4M3_COLUMNS": self.e4m3_columns} if self.e4m3_columns else {})

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
    if why := refuse_range(experts):
        return why
    return refuse_sizes(x, ids, weights, experts, choose_shapes(ids.numel(), len(experts.down_bias)))


def refuse_range(experts: Experts) -> str | None:
    """Returns why bf16 cannot hold the widened weights, or None. Scales are examined once."""
    if experts.fits_bf16:
        return None
    return "widens weights to bf16 times 2^-32, exactly for scales from 2^-93 to 2^33, and others are present"


def refuse_sizes(
    x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, shapes: tuple[Shape, Shape]
) -> str | None:
    """Returns why sizes, types or layouts are not what kernels of these shapes take, or None."""
    if x.shape[0] == 0:
        return "wants at least one token"
    num_experts, rows = experts.gate_up_bias.shape
    inter, hidden = rows // 2, x.shape[1]
    if hidden % BLOCK or inter % BLOCK:
        return f"reads weights by {BLOCK} rows and columns, not {hidden} and {inter}"
    if num_experts > MOST_EXPERTS:
        return f"is for up to {MOST_EXPERTS} experts, not {num_experts}"
    if ids.numel() > MOST_PAIRS:
        return f"is for up to {MOST_PAIRS} pairs, not {ids.numel()}"
    return refuse_expert_operands(x, ids, weights, experts) or (
        None if not x.is_cuda else _refuse_memory(find_machine(x.device), experts, shapes)
    )


def _refuse_memory(machine: Machine, experts: Experts, shapes: tuple[Shape, Shape]) -> str | None:
    """Returns why the machine has too little shared memory for one of the matmuls, or None."""
    num_experts, rows = experts.gate_up_bias.shape
    for shape, is_up, columns in zip(shapes, (True, False), (experts.down_bias.shape[1], rows // 2), strict=True):
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
    sizes = {"IS_UP": is_up, "NUM_COLUMNS": columns, "NUM_ROWS": rows, "EXPERTS": experts}
    defines = sizes | shape.list_defines(is_up, columns, experts, machine.shared_bytes)
    shared_bytes = int(defines["SHARED_BYTES"])
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


@dataclass(frozen=True, slots=True)
class Sorting:
    """Pairs of tokens and experts, sorted by expert."""

    places: Tensor  # [pairs] where each pair is
    order: Tensor  # [places] the pair that has a place
    weights: Tensor  # [places]
    starts: Tensor  # [E] an expert's first place
    counts: Tensor  # [E] and its number of pairs

    @property
    def num_places(self) -> int:
        return len(self.order)

    @property
    def tiled(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What a matmul reads."""
        return self.starts, self.counts, self.order, self.weights


def sort(ids: Tensor, weights: Tensor, num_experts: int) -> Sorting:
    """Sorts the pairs of ids and weights [T, A]."""
    pairs = ids.numel()
    num_places = count_places(pairs, num_experts)

    def empty(size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype, device=ids.device)

    sorting = Sorting(
        places=empty(pairs, torch.int32),
        order=empty(num_places, torch.int32),
        weights=empty(num_places, torch.float32),
        starts=empty(num_experts, torch.int32),
        counts=empty(num_experts, torch.int32),
    )
    args = (ids, weights, sorting.places, sorting.order, sorting.weights, sorting.starts, sorting.counts, pairs)
    launch(plan_place(experts=num_experts), (-(-pairs // PLACE_THREADS),), args, False)
    return sorting


def multiply(x: Tensor, ids: Tensor, sorting: Sorting, experts: Experts, limit: float, parts: Tensor) -> None:
    """Writes the results [pairs, H] of the pairs that `sorting` counts, in bf16."""
    (tokens, hidden), active, machine = x.shape, ids.shape[1], find_machine(x.device)
    num_experts, rows = experts.gate_up_bias.shape
    inter, num_places = rows // 2, sorting.num_places

    def empty(columns: int) -> Tensor:
        return torch.empty(columns // BLOCK, num_places, BLOCK, dtype=x.dtype, device=x.device)

    gathered, inner = empty(hidden), empty(inter)
    gather = plan_gather(hidden=hidden, active=active)
    launch(gather, (tokens,), (x, ids, sorting.places, gathered, num_places), True)
    up, down = choose_shapes(ids.numel(), num_experts)
    sizes, grid = {"experts": num_experts}, (machine.num_sms,)
    kernel = plan(machine, up, is_up=True, columns=hidden, rows=rows, **sizes)
    of_up = (experts.gate_up_codes, experts.gate_up_scales, experts.gate_up_bias)
    launch(kernel, grid, (gathered, *sorting.tiled, *of_up, inner, limit, num_places), True, tile=up)
    kernel = plan(machine, down, is_up=False, columns=inter, rows=hidden, **sizes)
    of_down = (experts.down_codes, experts.down_scales, experts.down_bias)
    launch(kernel, grid, (inner, *sorting.tiled, *of_down, parts, limit, num_places), True, tile=down)


def add_parts(parts: Tensor, ids: Tensor, x: Tensor) -> Tensor:
    """Returns y [T, H], the sums of the tokens' parts."""
    y = torch.empty_like(x)
    launch(plan_sum(hidden=x.shape[1], active=ids.shape[1]), (len(x),), (parts, ids, y), True)
    return y


def run(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float) -> Tensor:
    """Returns y [T, H] of moe_matmul. Each kernel but the first starts before the one ahead of it has ended."""
    parts = torch.empty(ids.numel(), x.shape[1], dtype=x.dtype, device=x.device)
    multiply(x, ids, sort(ids, weights, len(experts.down_bias)), experts, limit, parts)
    return add_parts(parts, ids, x)
