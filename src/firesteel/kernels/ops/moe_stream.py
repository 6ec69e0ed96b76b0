"""Expert matmuls that stream the weights: CUDA C++ for up to 192 tokens, on Hopper 128.

Each chosen expert's rows go once through a ring in shared memory (`csrc/ring.cuh`) and meet the tokens that want
it, up to eight at a time. A CTA takes consecutive rows, so that its tokens seldom change.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from firesteel.device import find_capability
from firesteel.kernels.cuda.source import CudaKernel
from firesteel.kernels.op.device_code import CudaCode
from firesteel.kernels.operands.weights import Experts
from firesteel.kernels.stream.build import build_kernel, keep, launch
from firesteel.kernels.stream.plan import FIRST, Machine, find_machine, machine_of, most_width
from firesteel.kernels.stream.refuse import refuse_expert_operands
from firesteel.kernels.stream.ring import STRIP_ROWS, Stream, align, plan_stream, refuse_columns
from firesteel.kernels.stream.shapes import Sizes
from firesteel.kernels.target import is_sm90

STAGES = 7
FLIGHT = 4  # stages in flight
STORERS = 2
MOST_TOKENS = 192  # measured on an H200: beyond, Triton's larger tiles are faster
MOST_TOKENS_SM90 = 128  # on an H200: beyond, cuda:wgmma is faster
MOST_TOKENS_SMALL = 64  # on GPUs with little shared memory, where four tokens meet an expert's rows at a time
PAIRS = (64, 128, 256, 512, 768)  # numbers of pairs that kernels are compiled for
SUM_THREADS = 128
SUM_COLUMNS = 2 * SUM_THREADS


def refuse(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, activation: str) -> str | None:
    """Returns why these operands cannot be computed in this way, or None."""
    if activation != "bf16":
        return f"computes with bf16 activations, not {activation}"
    machine = find_machine(x.device) if x.is_cuda else None
    most = MOST_TOKENS if machine is None or machine.is_large else MOST_TOKENS_SMALL
    if is_sm90(find_capability(x.device)):
        most = MOST_TOKENS_SM90
    if not 1 <= x.shape[0] <= most or not 1 <= ids.numel() <= PAIRS[-1]:
        return f"is for 1 to {most} tokens and {PAIRS[-1]} pairs, not {x.shape[0]} and {ids.numel()}"
    inter, hidden = experts.gate_up_bias.shape[1] // 2, x.shape[1]
    if hidden % STRIP_ROWS or 2 * inter % STRIP_ROWS:
        return f"reads weights by {STRIP_ROWS} rows, not {hidden} and {2 * inter}"
    return (
        refuse_expert_operands(x, ids, weights, experts)
        or refuse_columns(True, hidden)
        or refuse_columns(True, inter)
        or (None if machine is None else _refuse_memory(machine, ids, experts))
    )


def _refuse_memory(machine: Machine, ids: Tensor, experts: Experts) -> str | None:
    """Returns why the machine has too little shared memory for one of the matmuls, or None."""
    for kernel in plan_all(machine, ids, experts):
        if kernel.shared_bytes > machine.shared_bytes:
            needed = f"{kernel.shared_bytes} bytes of shared memory for {ids.numel()} pairs"
            return f"needs {needed}, this GPU has {machine.shared_bytes}: take fewer tokens a step"
    return None


def groups_bytes(experts: int, pairs: int, width: int) -> int:
    """Returns the size of `Groups` in csrc/moe_group.cuh."""
    places = min(pairs, experts) + pairs // width
    return align(4 * (1 + places + places + 1 + pairs + experts))


def shared_bytes(stream: Stream, experts: int, pairs: int) -> int:
    rows = stream.warps * stream.tokens
    held = align(rows * 128 * stream.steps_each) + align(4 * rows)
    bounds = align(4 * 2)  # `Bounds` in csrc/share.cuh
    return stream.ring_bytes + held + groups_bytes(experts, pairs, stream.tokens) + bounds


@keep
def plan(
    machine: Machine, *, is_up: bool, columns: int, rows: int, experts: int, active: int, pairs: int
) -> CudaKernel:
    """Plans one matmul: an expert has `rows` of `columns` weights."""
    pairs = next(count for count in PAIRS if pairs <= count)

    def shared(stream: Stream) -> int:
        return shared_bytes(stream, experts, pairs)

    width, limit = most_width(machine), machine.shared_bytes
    stream = plan_stream(True, columns, width, stages=STAGES, shared=shared, limit=limit)
    defines = {
        **stream.defines,
        "IS_UP": is_up,
        "NUM_COLUMNS": columns,
        "NUM_ROWS": rows,
        "EXPERTS": experts,
        "ACTIVE": active,
        "MAX_PAIRS": pairs,
        "ROUNDS_X": 0,
        "NUM_FLIGHT": FLIGHT,
        "NUM_STORERS": STORERS,
        "SHARED_BYTES": shared(stream),
    }
    threads = stream.threads + 32 * (STORERS - 1)
    return build_kernel("moe_stream", defines, threads=threads, shared_bytes=shared(stream))


@keep
def plan_sum(*, hidden: int, active: int) -> CudaKernel:
    return build_kernel("moe_sum", {"HIDDEN": hidden, "ACTIVE": active}, threads=SUM_THREADS)


@keep
def _plan_all(
    machine: Machine, ids_shape: tuple[int, ...], up_bias_shape: tuple[int, ...], hidden: int
) -> tuple[CudaKernel, CudaKernel, CudaKernel]:
    (tokens, active), (experts, rows) = ids_shape, up_bias_shape
    sizes = {"experts": experts, "active": active, "pairs": tokens * active}
    up = plan(machine, is_up=True, columns=hidden, rows=rows, **sizes)
    down = plan(machine, is_up=False, columns=rows // 2, rows=hidden, **sizes)
    return up, down, plan_sum(hidden=hidden, active=active)


def plan_all(machine: Machine, ids: Tensor, experts: Experts) -> tuple[CudaKernel, CudaKernel, CudaKernel]:
    """Returns the kernels of gate and up, of down, and of the sum."""
    return _plan_all(machine, ids.shape, experts.gate_up_bias.shape, experts.down_bias.shape[1])


def list_plans(capability: tuple[int, int], sizes: Sizes) -> Iterator[CudaCode]:
    """Lists the kernels that such a GPU launches for experts of these sizes."""
    if capability < FIRST:
        return
    hidden, inter = sizes.hidden, sizes.intermediate
    shapes = {"up": (True, hidden, 2 * inter), "down": (False, inter, hidden)}
    for (name, (is_up, columns, rows)), pairs in itertools.product(shapes.items(), PAIRS):
        kernel = plan(
            machine_of(capability),
            is_up=is_up,
            columns=columns,
            rows=rows,
            experts=sizes.experts,
            active=sizes.active,
            pairs=pairs,
        )
        yield CudaCode(variant=f"cuda:stream {name} pairs={pairs}", kernel=kernel)
    yield CudaCode(variant="cuda:stream sum", kernel=plan_sum(hidden=hidden, active=sizes.active))


def run(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float) -> Tensor:
    """Returns y [T, H] of moe_matmul. Two of the three kernels start before the one ahead of them has ended."""
    (tokens, hidden), machine = x.shape, find_machine(x.device)
    inter, pairs = experts.gate_up_bias.shape[1] // 2, ids.numel()
    inner = torch.empty(pairs, inter, dtype=x.dtype, device=x.device)
    parts = torch.empty(pairs, hidden, dtype=torch.float32, device=x.device)
    y = torch.empty_like(x)
    up, down, total = plan_all(machine, ids, experts)
    grid, chosen = (machine.num_sms,), (ids, weights)
    of_up = (experts.gate_up_codes, experts.gate_up_scales, experts.gate_up_bias)
    of_down = (experts.down_codes, experts.down_scales, experts.down_bias)
    launch(up, grid, (x, *chosen, *of_up, inner, limit, pairs), False)
    launch(down, grid, (inner, *chosen, *of_down, parts, limit, pairs), True)
    launch(total, (-(-hidden // SUM_COLUMNS), tokens), (parts, ids, y), True)
    return y
