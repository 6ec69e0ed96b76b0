"""Tensors of a drafter's folder by name: each is taken once with its shape, then all are read together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from firesteel.device import DeviceSpec
from firesteel.model.drafters.errors import DrafterError
from firesteel.model.reader import Stretch, read_all
from firesteel.model.shards import CheckpointError, StoredTensor, find_tensors
from firesteel.model.weights import check_memory
from firesteel.untrusted.json_file import shorten

WORKERS = 4
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
CURE = "download the head again, or use the one that was made for this model"


@dataclass(slots=True)
class HeadTensors:
    """Tensors that are stored, and those taken so far. Weights are held in bf16, whatever they are stored in."""

    directory: Path
    stored: dict[str, StoredTensor]
    device: torch.device
    taken: set[str] = field(default_factory=set)
    reads: list[tuple[StoredTensor, Tensor]] = field(default_factory=list)

    @classmethod
    def open(cls, directory: Path, device: DeviceSpec, rename: Callable[[str], str | None]) -> HeadTensors:
        """Reads the headers; `rename` returns a tensor's name in our terms, None for one that is not needed."""
        try:
            found = find_tensors(directory)
        except CheckpointError as error:
            raise DrafterError(str(error)) from error
        stored: dict[str, StoredTensor] = {}
        for name, tensor in found.items():
            ours = rename(name)
            if ours in stored:
                raise DrafterError(f"{tensor.file}: tensor {shorten(name)} is stored under two names; {CURE}")
            if ours is not None:
                stored[ours] = tensor
        check_memory(2 * sum(tensor.num_bytes for tensor in stored.values()), device, 0.0)
        return cls(directory, stored, device.torch_device)

    def __contains__(self, name: str) -> bool:
        return name in self.stored

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def take(self, name: str, *shape: int) -> Tensor:
        """Returns a bf16 tensor that `read` fills."""
        return self.take_rows([name], [shape[0]], *shape[1:])

    def take_rows(self, names: Sequence[str], rows: Sequence[int], *rest: int) -> Tensor:
        """Returns several matrices, or vectors, one below the other, in one bf16 tensor that `read` fills."""
        for name, count in zip(names, rows, strict=True):  # before memory is taken for shapes that a config claims
            self._check_type(name)
            self._check_shape(name, (count, *rest))
        target = torch.empty(sum(rows), *rest, dtype=torch.bfloat16, device=self.device)
        self.reads += zip(map(self._find, names), target.split(list(rows)), strict=True)
        self.taken.update(names)
        return target

    def take_integers(self, name: str, count: int) -> Tensor:
        """Reads a vector of whole numbers now; returns it as int64 on the host."""
        tensor = self._find(name)
        if tensor.dtype not in (torch.int32, torch.int64):
            raise DrafterError(f"{tensor.file}: tensor {name} is {tensor.dtype}, expected int64; {CURE}")
        self._check_shape(name, (count,))
        target = torch.empty(tensor.shape, dtype=tensor.dtype)
        _read([Stretch(tensor.file, tensor.offset, target)])
        self.taken.add(name)
        return target.long()

    def read(self) -> None:
        """Fills all tensors taken; raises if one is stored that was not taken: it may change the network."""
        if extra := sorted(set(self.stored) - self.taken):
            raise DrafterError(
                f"{self.stored[extra[0]].file}: tensor {shorten(extra[0])} does not belong to this kind of head "
                f"({len(extra)} extra): firesteel would compute another network without it"
            )
        same = [(stored, target) for stored, target in self.reads if stored.dtype == target.dtype]
        _read([Stretch(stored.file, stored.offset, target) for stored, target in same])
        for stored, target in self.reads:
            if stored.dtype != target.dtype:
                wide = torch.empty(stored.shape, dtype=stored.dtype, device=self.device)
                _read([Stretch(stored.file, stored.offset, wide)])
                target.copy_(wide)

    def _find(self, name: str) -> StoredTensor:
        if name not in self.stored:
            raise DrafterError(f"tensor {name} is missing from the head in {self.directory}; {CURE}")
        return self.stored[name]

    def _check_type(self, name: str) -> None:
        tensor = self._find(name)
        if tensor.dtype not in FLOATS:
            raise DrafterError(
                f"{tensor.file}: tensor {name} is {tensor.dtype}; firesteel computes heads in bf16, fp16 or fp32: "
                "use the head that is not quantised"
            )

    def _check_shape(self, name: str, shape: Sequence[int]) -> None:
        tensor = self._find(name)
        if tensor.shape != tuple(shape):
            raise DrafterError(
                f"{tensor.file}: tensor {name} has shape {tensor.shape}, expected {tuple(shape)} from config.json "
                f"and the target; {CURE}"
            )


def _read(stretches: list[Stretch]) -> None:
    try:
        if stretches:
            read_all(stretches, workers=WORKERS)
    except CheckpointError as error:
        raise DrafterError(str(error)) from error
