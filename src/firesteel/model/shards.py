"""Location of each tensor of a checkpoint: file, offset, type and shape, read from the file headers."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from firesteel.errors import UserError
from firesteel.untrusted.json_file import LARGEST_BYTES, parse_object, read_bytes, read_object, reading, shorten

DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD_NAME = r"[\w.+=@ -]{1,200}\.safetensors"  # a file name without folders
MOST_DIMENSIONS = 8
LARGEST_SIZE = 1 << 48  # of a dimension or an offset
CURE = "download the checkpoint again"


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
    if not os.path.lexists(index):
        single = directory / SINGLE
        if not os.path.lexists(single):
            raise CheckpointError(
                f"{directory} holds neither {SINGLE} nor {INDEX}: not a checkpoint, or incomplete"
            )
        return read_header(single)
    weight_map = read_object(index, CheckpointError, CURE).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index} has no weight_map; {CURE}")
    for name, file_name in weight_map.items():
        _check_shard_name(index, name, file_name)
    tensors: dict[str, StoredTensor] = {}
    for file_name in sorted(set(weight_map.values())):
        if not os.path.lexists(directory / file_name):
            raise CheckpointError(
                f"shard {file_name} is missing from {directory}; {INDEX} names it: fetch it with `firesteel pull`"
            )
        for name, tensor in read_header(directory / file_name).items():
            if weight_map.get(name) != file_name:
                raise CheckpointError(
                    f"{directory / file_name} holds {shorten(name)}, but {INDEX} places it in "
                    f"{weight_map.get(name)}; {CURE}"
                )
            tensors[name] = tensor
    for name, file_name in weight_map.items():
        if name not in tensors:
            raise CheckpointError(
                f"tensor {shorten(name)} is missing from {directory / file_name}, where {INDEX} places it; {CURE}"
            )
    return tensors


def _check_shard_name(index: Path, tensor: str, file_name: object) -> None:
    """Raises unless an index names a file of its own folder, so that no index reads files elsewhere."""
    if not isinstance(file_name, str) or not re.fullmatch(SHARD_NAME, file_name):
        raise CheckpointError(
            f"{index} places {shorten(tensor)} in {shorten(repr(file_name))}, which is not the name of a "
            f".safetensors file in this folder; {CURE}"
        )


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of a safetensors file by name; together they fill the file without gap or overlap."""
    with reading(path, CheckpointError, CURE) as descriptor:
        size = os.fstat(descriptor).st_size
        length = int.from_bytes(read_bytes(descriptor, 8), "little")
        if size < 8 or not 0 < length <= size - 8:
            raise CheckpointError(
                f"{path} is not a safetensors file or is cut off inside its header ({size} bytes); {CURE}"
            )
        if length > LARGEST_BYTES:
            raise CheckpointError(f"{path}: the header has {length} bytes, the limit is {LARGEST_BYTES}; {CURE}")
        data = read_bytes(descriptor, length)
    header = parse_object(data, f"{path}: the safetensors header", CheckpointError, CURE)
    if not isinstance(header.pop("__metadata__", {}), dict):
        raise CheckpointError(f"{path}: __metadata__ is not an object; {CURE}")
    tensors = {name: _entry(path, name, entry, 8 + length, size) for name, entry in header.items()}
    _check_layout(path, tensors, 8 + length, size)
    return tensors


def _entry(path: Path, name: str, entry: Any, base: int, size: int) -> StoredTensor:
    where = f"{path}: tensor {shorten(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: the header's entry is malformed: {shorten(entry)}; {CURE}")
    dtype_name, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype_name, str) or dtype_name not in DTYPES:
        raise CheckpointError(f"{where} has the unknown type {shorten(dtype_name)}; {CURE}")
    if not _are_sizes(shape) or len(shape) > MOST_DIMENSIONS:
        raise CheckpointError(f"{where}: the shape {shorten(shape)} is malformed; {CURE}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{where}: data_offsets {shorten(offsets)} are malformed; {CURE}")
    begin, end = offsets
    dtype = DTYPES[dtype_name]
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(
            f"{where} takes {end - begin} bytes, which does not match its shape {tuple(shape)} and type "
            f"{dtype_name}; {CURE}"
        )
    if base + end > size:
        raise CheckpointError(
            f"{path} is truncated: tensor {shorten(name)} ends at byte {base + end}, the file has {size}; "
            "download it again"
        )
    return StoredTensor(path, base + begin, end - begin, dtype, tuple(shape))


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < LARGEST_SIZE for value in values)


def _check_layout(path: Path, tensors: dict[str, StoredTensor], base: int, size: int) -> None:
    """Raises if two tensors share bytes, or if bytes belong to none: the format allows neither."""
    filled, before = base, "the header"
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
        if tensor.offset != filled:
            kind = "overlaps" if tensor.offset < filled else "leaves a gap after"
            raise CheckpointError(
                f"{path}: tensor {shorten(name)} begins at byte {tensor.offset} and {kind} {before}, which ends at "
                f"byte {filled}; {CURE}"
            )
        filled, before = filled + tensor.num_bytes, shorten(name)
    if filled != size:
        raise CheckpointError(f"{path} has {size - filled} bytes after its last tensor; {CURE}")
