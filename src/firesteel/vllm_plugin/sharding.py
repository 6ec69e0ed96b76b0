"""The tensor-parallel cut: which heads, columns and rows each rank holds, and how it loads them.

Each rank holds some heads of attention and some of every expert's intermediate values. What o and the experts'
second matmul compute from them are partial sums, which the ranks add (`Ranks` in model/gpt_oss.py). Rank 0 alone
adds the biases of these two; other ranks hold zeros. Each rank computes the logits of some tokens. Embedding, norms
and router are the same on all ranks.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from firesteel.device import DeviceSpec
from firesteel.errors import UserError
from firesteel.kernels.stream.ring import STRIP_ROWS, refuse_columns
from firesteel.model.fill import CODES, SCALES, LoadReport
from firesteel.model.reader import Progress
from firesteel.model.shards import StoredTensor, find_tensors
from firesteel.model.spec import GROUP, ModelSpec
from firesteel.model.synthetic import draw_tensor
from firesteel.model.weights import (
    Weights,
    check_memory,
    check_tensors,
    empty_weights,
    named_tensors,
    read_weights,
)

UNIT = 64  # the experts' intermediate values are cut at multiples of it: rows of fc2 are streamed by 64 values


class ShardError(UserError):
    """Raised for a network that cannot be cut into the given number of ranks."""


class Cut(NamedTuple):
    """The indices of one axis of a tensor that a rank holds: `length` of them from `first` on."""

    axis: int
    first: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The part of a network that rank `rank` of `size` ranks holds.

    `whole` is the spec of the network as it is held, with the dense layers that are quantised during loading.
    """

    whole: ModelSpec
    rank: int
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ShardError(f"rank {self.rank} of {self.size}: ranks count from 0 to {self.size - 1}")
        kv_heads = self.whole.num_kv_heads
        if kv_heads % self.size:
            sizes = ", ".join(str(size) for size in range(1, kv_heads + 1) if kv_heads % size == 0)
            raise ShardError(
                f"{kv_heads} KV heads cannot be shared equally by {self.size} ranks: "
                f"use a tensor parallel size of {sizes}"
            )
        _ = self.spec  # raises if the other sizes cannot be cut

    @property
    def spec(self) -> ModelSpec:
        """The spec of the rank's network. The vocabulary is the whole one: the embedding is not cut."""
        if self.size == 1:
            return self.whole
        return replace(
            self.whole,
            num_heads=self.whole.num_heads // self.size,
            num_kv_heads=self.whole.num_kv_heads // self.size,
            intermediate_size=cut_intermediate(self.whole.intermediate_size, self.size)[self.rank],
        )

    @property
    def lm_head_rows(self) -> int:
        """The number of rows of lm_head on each rank, equal on all ranks so that logits can be gathered.

        The last rows may be padding with zeros: of the gathered logits, the first `whole.vocab_size` belong to
        tokens.
        """
        vocabulary = self.whole.vocab_size
        return vocabulary if self.size == 1 else -(-vocabulary // (self.size * STRIP_ROWS)) * STRIP_ROWS

    def empty_weights(self, device: torch.device) -> Weights:
        """Returns uninitialised storage of the rank's part."""
        return empty_weights(self.spec, device, lm_head_rows=self.lm_head_rows)

    def weight_bytes(self) -> int:
        """Returns the bytes of the rank's part."""
        planned = named_tensors(self.empty_weights(torch.device("meta")), self.spec)
        return sum(tensor.nbytes for tensor in planned.values())

    def find_cut(self, name: str) -> Cut | None:
        """Returns the part of the checkpoint's tensor `name` that the rank holds; None means all of it.

        It is empty for a bias that another rank adds.
        """
        if self.size == 1:
            return None
        module = name.removeprefix("model.layers.").partition(".")[2] if "layers." in name else name
        unit = GROUP if name.endswith((CODES, SCALES)) else 1  # values per index of a packed row
        spec, rank = self.spec, self.rank
        if module.startswith("lm_head."):
            first = min(rank * self.lm_head_rows, self.whole.vocab_size)
            return Cut(0, first, min(self.lm_head_rows, self.whole.vocab_size - first))
        if module in ("self_attn.o_proj.bias", "mlp.experts.down_proj_bias"):
            return None if rank == 0 else Cut(0, 0, 0)
        if module.startswith("self_attn.q_proj."):
            return Cut(0, rank * spec.q_size, spec.q_size)
        if module.startswith(("self_attn.k_proj.", "self_attn.v_proj.")):
            return Cut(0, rank * spec.kv_size, spec.kv_size)
        if module == "self_attn.sinks":
            return Cut(0, rank * spec.num_heads, spec.num_heads)
        if module.startswith("self_attn.o_proj.weight"):
            return Cut(1, rank * spec.q_size // unit, spec.q_size // unit)
        first = sum(cut_intermediate(self.whole.intermediate_size, self.size)[:rank])
        if module.startswith("mlp.experts.gate_up_proj_"):  # rows alternate gate, up
            return Cut(1, 2 * first, 2 * spec.intermediate_size)
        if module.startswith("mlp.experts.down_proj_"):
            return Cut(2, first // unit, spec.intermediate_size // unit)
        return None

    def copy_part(self, name: str, source: Tensor, target: Tensor) -> None:
        """Copies the rank's part of the checkpoint's tensor `name` to its place in the rank's storage.

        Rows of the target that `source` does not have are set to zero.
        """
        cut = self.find_cut(name)
        part = source if cut is None else source.narrow(*cut)
        target[: len(part)].copy_(part)
        target[len(part) :].zero_()

    def narrow(self, stored: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Returns the rank's parts of a checkpoint's tensors, without those of which it holds nothing."""
        cuts = {name: self.find_cut(name) for name in stored}
        parts = {name: stored[name] if cut is None else stored[name].narrow(*cut) for name, cut in cuts.items()}
        return {name: part for name, part in parts.items() if part.num_bytes or name.startswith("lm_head.")}


@functools.cache
def cut_intermediate(intermediate_size: int, num_ranks: int) -> tuple[int, ...]:
    """Returns how many of an expert's intermediate values each rank holds, the most first.

    Parts are as equal as the kernels allow, which stream rows of some multiples of 64 values only. Raises
    ShardError if there is no such cut.
    """
    units = intermediate_size // UNIT
    parts = _share(units, num_ranks, most=units) if intermediate_size % UNIT == 0 else None
    if parts is None:
        raise ShardError(
            f"an intermediate size of {intermediate_size} cannot be cut for {num_ranks} ranks: each needs a "
            f"multiple of {UNIT} values that the decode kernels can stream; use a smaller tensor parallel size"
        )
    return tuple(UNIT * part for part in parts)


def _share(num_units: int, num_ranks: int, *, most: int) -> tuple[int, ...] | None:
    """Returns parts of at most `most` units, or None. The first is as small as it can be: the slowest rank's."""
    if num_ranks == 0:
        return () if num_units == 0 else None
    for largest in range(max(1, -(-num_units // num_ranks)), min(num_units, most) + 1):
        if refuse_columns(True, UNIT * largest) is None:
            rest = _share(num_units - largest, num_ranks - 1, most=largest)
            if rest is not None:
                return (largest, *rest)
    return None


def load_shard(
    directory: Path,
    stored_spec: ModelSpec,
    shard: Shard,
    device: DeviceSpec,
    *,
    workers: int,
    reserve_gib: float,
    progress: Progress | None = None,
) -> tuple[Weights, LoadReport]:
    """Loads the rank's part of a checkpoint described by `stored_spec`.

    Dense layers that are MXFP4 in `shard.whole` and not in `stored_spec` are quantised here. The rank's memory
    holds its part only. Tensors that are cut by columns (o and the experts' second matmul) are read whole and cut
    while they are read.
    """
    stored = find_tensors(directory)
    check_tensors(stored, stored_spec, directory)
    return read_weights(
        shard.narrow(stored),
        shard.spec,
        device,
        workers=workers,
        reserve_gib=reserve_gib,
        progress=progress,
        lm_head_rows=shard.lm_head_rows,
    )


def synthetic_shard(shard: Shard, device: DeviceSpec, *, seed: int, reserve_gib: float = 0.0) -> Weights:
    """Returns the rank's part of the random weights that `synthetic_weights` gives the whole network.

    One tensor of the network at a time is drawn whole.
    """
    planned = named_tensors(empty_weights(shard.whole, torch.device("meta")), shard.whole)
    largest = max(tensor.nbytes for tensor in planned.values())
    check_memory(shard.weight_bytes() + largest, device, reserve_gib)
    weights = shard.empty_weights(device.torch_device)
    targets = named_tensors(weights, shard.spec)
    for number, (name, shape) in enumerate(planned.items()):
        is_whole = shard.find_cut(name) is None
        tensor = targets[name] if is_whole else torch.empty_like(shape, device=device.torch_device)
        draw_tensor(name, tensor, shard.whole, seed=seed, number=number)
        if not is_whole:
            shard.copy_part(name, tensor, targets[name])
    return weights
