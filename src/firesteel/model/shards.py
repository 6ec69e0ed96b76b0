"""Location of each tensor of a checkpoint: file, offset, type and shape, read from the file headers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from firesteel.errors import UserError

DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "I32": torch.int32,
    "I64": torch.int64,
}
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LARGEST_HEADER = 100 << 20  # bytes; safetensors' own limit


class CheckpointError(UserError):
    """Raised for a checkpoint that is incomplete, damaged or does not match its config.json."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Location, type and shape of a tensor in a file, or of a part of one.

    A part consists of runs of bytes of equal length, which begin `pitch_bytes` apart.
    """

    file: Path
    offset: int  # of the first byte in the file
    num_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    num_runs: int = 1
    pitch_bytes: int = 0

    def narrow(self, axis: int, first: int, count: int) -> StoredTensor:
        """Returns the part with `count` indices of `axis`, from `first` on, as torch.narrow does.

        A tensor that consists of several runs can be narrowed along its first axis only.
        """
        if not 0 <= first <= first + count <= self.shape[axis] or (axis and self.num_runs > 1):
            raise ValueError(f"cannot take {count} indices from {first} on of axis {axis} of {self}")
        if self.num_runs > 1:
            each = self.num_runs // self.shape[0]
            return replace(
                self,
                offset=self.offset + first * each * self.pitch_bytes,
                num_bytes=self.num_bytes // self.shape[0] * count,
                shape=(count, *self.shape[1:]),
                num_runs=each * count,
            )
        inner_bytes = math.prod(self.shape[axis + 1 :]) * self.dtype.itemsize
        num_runs = math.prod(self.shape[:axis])
        return replace(
            self,
            offset=self.offset + first * inner_bytes,
            num_bytes=num_runs * count * inner_bytes,
            shape=(*self.shape[:axis], count, *self.shape[axis + 1 :]),
            num_runs=num_runs,
            pitch_bytes=self.shape[axis] * inner_bytes,
        )


def find_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Returns every tensor of a checkpoint folder by name, sharded or not."""
    index = directory / INDEX
    if not index.exists():
        single = directory / SINGLE
        if not single.exists():
            raise CheckpointError(
                f"{directory} holds neither {SINGLE} nor {INDEX}: not a checkpoint, or incomplete"
            )
        return read_header(single)
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index} has no weight_map")
    tensors: dict[str, StoredTensor] = {}
    for file_name in sorted(set(weight_map.values())):
        if not (directory / file_name).exists():
            raise CheckpointError(
                f"shard {file_name} is missing from {directory}; {INDEX} names it: download it again"
            )
        for name, tensor in read_header(directory / file_name).items():
            if weight_map.get(name) != file_name:
                raise CheckpointError(
                    f"{directory / file_name} holds {name}, but {INDEX} places it in {weight_map.get(name)}"
                )
            tensors[name] = tensor
    for name, file_name in weight_map.items():
        if name not in tensors:
            raise CheckpointError(f"tensor {name} is missing from {directory / file_name}, where {INDEX} places it")
    return tensors


def read_header(path: Path) -> dict[str, StoredTensor]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 0 < length <= min(LARGEST_HEADER, size - 8):
            raise CheckpointError(
                f"{path} is not a safetensors file or is cut off inside its header ({size} bytes)"
            )
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise CheckpointError(f"{path}: the safetensors header is not valid JSON: {error}") from error
    header.pop("__metadata__", None)
    return {name: _entry(path, name, entry, 8 + length, size) for name, entry in header.items()}


def _entry(path: Path, name: str, entry: Any, base: int, size: int) -> StoredTensor:
    try:
        dtype_name, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        num_bytes = int(end) - int(begin)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: the header's entry for {name} is malformed: {entry!r}") from error
    if dtype_name not in DTYPES:
        raise CheckpointError(f"{path}: tensor {name} has the unknown type {dtype_name}")
    dtype = DTYPES[dtype_name]
    if num_bytes != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(
            f"{path}: tensor {name} takes {num_bytes} bytes, "
            f"which does not match its shape {shape} and type {dtype_name}"
        )
    if begin < 0 or base + end > size:
        raise CheckpointError(
            f"{path} is truncated: tensor {name} ends at byte {base + end}, the file has {size}; download it again"
        )
    return StoredTensor(path, base + begin, num_bytes, dtype, shape)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds {type(content).__name__}, not an object")
    return content
