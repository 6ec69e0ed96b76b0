"""The ring in shared memory through which decode kernels stream weights: warps, row chunks, stages.

The sizes are those of `Stream` and `Ring` in csrc/ring.cuh, which are compiled with what is chosen here and do not
compile where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from firesteel.errors import KernelError
from firesteel.kernels.operands.weights import Mxfp4Weight

MOST_TOKENS = 8
SET_TOKENS = 4  # of a set: the tokens of one MMA before packed weights
MOST_WARPS = 16  # that multiply, beside those that ask for weights
MOST_PART_BYTES = 1440  # of a row of bf16, unless an op says otherwise
MOST_STEPS = 4  # of 32 bytes that a warp multiplies of each row: what it needs of x stays in registers
STRIP_ROWS = 16
LEAST_STAGES = 2  # one is loaded while the other is multiplied


def round_tokens(tokens: int) -> int:
    """Returns the token count that a kernel is compiled for: 1, 2, 4 or 8."""
    return 1 << (tokens - 1).bit_length()


def align(num_bytes: int) -> int:
    return -(-num_bytes // 128) * 128


def pad(num_bytes: int) -> int:
    """Returns the bytes of a row in shared memory, padded so that consecutive rows start 8 banks apart."""
    size = -(-num_bytes // 16) * 16
    while size // 4 % 32 not in (8, 24):
        size += 16
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream of rows of `columns` weights, each cut into `chunks` parts, that meet `tokens` tokens."""

    is_fp4: bool
    columns: int
    tokens: int  # 1, 2, 4 or 8
    chunks: int
    warps: int  # that multiply
    stages: int
    held: int = MOST_TOKENS  # the most tokens of which x is in shared memory at a time

    @property
    def row_bytes(self) -> int:
        return self.columns // 2 if self.is_fp4 else 2 * self.columns

    @property
    def stride(self) -> int:
        return pad(self.row_bytes // self.chunks)

    @property
    def threads(self) -> int:
        """Threads per CTA: warps that multiply, one or two that copy (one if rows are unpadded), a storer."""
        return 32 * (self.warps + (1 if self.stride == self.row_bytes else 2) + 1)

    @property
    def ring_bytes(self) -> int:
        beside = STRIP_ROWS * (self.columns // 32 + 2) if self.is_fp4 else 0  # scales and bias
        data = self.stages * align(STRIP_ROWS * self.stride + beside)
        sums = align(4 * self.stages * self.warps * STRIP_ROWS * self.tokens)
        half = align(4 * STRIP_ROWS * self.tokens)
        return data + sums + half + align(8 * (3 * self.stages + 1))

    @property
    def x_bytes(self) -> int:
        return align(self.num_held * pad(2 * self.columns))

    @property
    def num_held(self) -> int:
        """Tokens of which x is in shared memory at a time."""
        return min(self.held, self.tokens)

    @property
    def steps_each(self) -> int:
        """32-byte steps per warp in each row chunk."""
        return self.row_bytes // self.chunks // 32 // self.warps

    @property
    def scratch_bytes(self) -> int:
        """Scratch bytes of the norm."""
        return align(4 * self.tokens * self.warps)

    @property
    def defines(self) -> dict[str, int]:
        return {
            "IS_FP4": self.is_fp4,
            "MAX_TOKENS": self.tokens,
            "NUM_CHUNKS": self.chunks,
            "NUM_WARPS": self.warps,
            "NUM_STAGES": self.stages,
            "NUM_HELD": self.num_held,
        }

    def __str__(self) -> str:
        return f"{self.warps} warps {self.stages} stages {self.tokens} tokens"


def plan_stream(
    weight_is_fp4: bool,
    columns: int,
    tokens: int,
    *,
    stages: int,
    shared: Callable[[Stream], int],
    limit: int,
    most_part_bytes: int = MOST_PART_BYTES,
    fewest_held: int = MOST_TOKENS,
) -> Stream:
    """Plans a ring of up to `stages` stages, as many as fit in `limit` bytes beside all else that `shared` counts.

    If fewer than two fit, packed weights meet x of only `fewest_held` tokens in shared memory at a time, and bf16
    rows are cut into smaller parts.
    """
    if why := refuse_columns(weight_is_fp4, columns):
        raise KernelError(f"decode kernels: {why}")
    row_bytes = columns // 2 if weight_is_fp4 else 2 * columns
    chunks = 1 if weight_is_fp4 else _cut_row(row_bytes, most_part_bytes)
    whole = Stream(
        is_fp4=weight_is_fp4,
        columns=columns,
        tokens=round_tokens(tokens),
        chunks=chunks,
        warps=_share_out(row_bytes // chunks // 32),
        stages=stages,
    )
    fitted = [_drop_stages(stream, shared, limit) for stream in _list_smaller(whole, fewest_held)]
    return max(fitted, key=lambda stream: (shared(stream) <= limit, min(stream.stages, LEAST_STAGES)))  # the first


def _drop_stages(stream: Stream, shared: Callable[[Stream], int], limit: int) -> Stream:
    """Returns the stream with as many stages as fit, or with one."""
    while shared(stream) > limit and stream.stages > 1:
        stream = replace(stream, stages=stream.stages - 1)
    return stream


def _list_smaller(whole: Stream, fewest_held: int) -> Iterator[Stream]:
    """Lists the stream and those that need less shared memory, with as many warps."""
    yield whole
    if whole.is_fp4:
        yield replace(whole, held=fewest_held)
        return
    steps = whole.row_bytes // 32
    for chunks in range(whole.chunks + 1, steps + 1):
        if steps % chunks == 0 and _share_out(steps // chunks) == whole.warps:
            yield replace(whole, chunks=chunks)


def refuse_columns(weight_is_fp4: bool, columns: int) -> str | None:
    """Returns why rows of `columns` values cannot be streamed, or None."""
    least = 64 if weight_is_fp4 else 16
    if columns % least:
        return f"streams rows of a multiple of {least} values, not {columns}"
    row_bytes = columns // 2 if weight_is_fp4 else 2 * columns
    chunks = 1 if weight_is_fp4 else _cut_row(row_bytes, MOST_PART_BYTES)
    steps = row_bytes // chunks // 32
    if steps > MOST_STEPS * _share_out(steps):
        return f"shares rows of {columns} values among {_share_out(steps)} warps: too many for each"
    return None


def refuse_weight(weight: Tensor | Mxfp4Weight) -> str | None:
    """Returns why such a weight cannot be streamed, or None."""
    parts = (weight.codes, weight.scales) if isinstance(weight, Mxfp4Weight) else (weight,)
    if not all(part.is_contiguous() for part in parts):
        return "wants contiguous weights"
    if weight.shape[0] % STRIP_ROWS:
        return f"reads weights by {STRIP_ROWS} rows, not {weight.shape[0]}"
    return refuse_columns(isinstance(weight, Mxfp4Weight), weight.shape[1])


def _cut_row(row_bytes: int, most_part_bytes: int) -> int:
    """Parts of a bf16 row, each whole steps of 32 bytes."""
    cuts = (chunks for chunks in range(1, row_bytes // 32 + 1) if row_bytes % (32 * chunks) == 0)
    return next(chunks for chunks in cuts if row_bytes // chunks <= most_part_bytes)


def _share_out(steps: int) -> int:
    """Warps: as many as get the same share."""
    return max(warps for warps in range(1, MOST_WARPS + 1) if steps % warps == 0)
