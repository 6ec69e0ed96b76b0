"""Writes weights as a checkpoint in the public layout, in one file or in shards; weights.py reads it back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from firesteel.model.fill import SCALES
from firesteel.model.shards import INDEX, SINGLE, CheckpointError
from firesteel.model.spec import ModelSpec, write_spec
from firesteel.model.weights import Weights, named_tensors


def save_checkpoint(directory: Path, spec: ModelSpec, weights: Weights, *, shard_bytes: int | None = None) -> None:
    """Writes config.json and safetensors files; a shard holds at most `shard_bytes`, and None writes one file.

    Each file gets its final name only once it is complete, config.json last.
    """
    directory.mkdir(parents=True, exist_ok=True)
    named = {name: tensor.detach().contiguous().cpu() for name, tensor in named_tensors(weights, spec).items()}
    if shard_bytes is None:
        save_tensors(directory / SINGLE, named)
    else:
        shards = split(named, shard_bytes)
        for file_name, names in shards.items():
            save_tensors(directory / file_name, {name: named[name] for name in names})
        write_index(directory, named, shards)
    write_json(directory / "config.json", write_spec(spec))


def split(named: Mapping[str, Tensor], max_bytes: int) -> dict[str, list[str]]:
    """Returns tensor names by file: at most `max_bytes` per file, unless a single tensor has more.

    Scales stay with their codes, so a matrix is never split between two files.
    """
    shards: list[list[str]] = [[]]
    shard_bytes = 0
    for name, tensor in named.items():
        if shards[-1] and shard_bytes + tensor.nbytes > max_bytes and not name.endswith(SCALES):
            shards.append([])
            shard_bytes = 0
        shards[-1].append(name)
        shard_bytes += tensor.nbytes
    count = len(shards)
    return {f"model-{number:05d}-of-{count:05d}.safetensors": names for number, names in enumerate(shards, 1)}


def write_index(directory: Path, named: Mapping[str, Tensor], shards: Mapping[str, list[str]]) -> None:
    weight_map = {name: file_name for file_name, names in shards.items() for name in names}
    total = sum(tensor.nbytes for tensor in named.values())
    write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def save_tensors(path: Path, named: dict[str, Tensor]) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        save_file(named, partial, metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {path}: {error}: is the disk full?") from error
    partial.replace(path)


def write_json(path: Path, content: object) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
