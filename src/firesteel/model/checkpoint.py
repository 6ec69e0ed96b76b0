"""Writes weights as a checkpoint in the public layout, sharded or not; the other way round is weights.py."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from firesteel.model.shards import INDEX, SINGLE
from firesteel.model.spec import ModelSpec, write_spec
from firesteel.model.weights import Weights, named_tensors


def save_checkpoint(directory: Path, spec: ModelSpec, weights: Weights, *, shard_bytes: int | None = None) -> None:
    """config.json and safetensors; `shard_bytes` is the most a shard holds, None writes one file.

    Each file appears under its name only when it is whole, config.json last.
    """
    directory.mkdir(parents=True, exist_ok=True)
    named = {name: tensor.detach().contiguous().cpu() for name, tensor in named_tensors(weights, spec).items()}
    if shard_bytes is None:
        _save(directory / SINGLE, named)
    else:
        _save_sharded(directory, named, shard_bytes)
    _write_json(directory / "config.json", write_spec(spec))


def _save_sharded(directory: Path, named: dict[str, Tensor], shard_bytes: int) -> None:
    shards = _split(named, shard_bytes)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _save(directory / file_name, shard)
        weight_map |= dict.fromkeys(shard, file_name)
    total = sum(tensor.nbytes for tensor in named.values())
    _write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _split(named: dict[str, Tensor], most: int) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in named.items():
        held = sum(one.nbytes for one in shards[-1].values())
        if shards[-1] and held + tensor.nbytes > most:
            shards.append({})
        shards[-1][name] = tensor
    return shards


def _save(path: Path, named: dict[str, Tensor]) -> None:
    partial = path.with_name(path.name + ".partial")
    save_file(named, partial, metadata={"format": "pt"})
    partial.replace(path)


def _write_json(path: Path, content: object) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
