"""Writes a copy of a checkpoint with dense layers in MXFP4, one shard at a time.

The copy holds `NAME_blocks` and `NAME_scales` instead of a matrix `NAME`, in the layout of the experts. Only
firesteel reads it: transformers and other engines support MXFP4 in experts only.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firesteel.device import GIB
from firesteel.model.checkpoint import save_tensors, split, write_index, write_json
from firesteel.model.fields import SpecError
from firesteel.model.fill import QuantizedLayer, add, fill
from firesteel.model.precision import DENSE_LAYERS, check_names, in_order, write_quantization
from firesteel.model.reader import Progress, shift
from firesteel.model.shards import CURE, INDEX, CheckpointError, StoredTensor, find_tensors
from firesteel.model.spec import ModelSpec, read_spec
from firesteel.model.weights import check_scales, check_tensors, empty_weights, named_tensors
from firesteel.untrusted.json_file import read_object

SHARD_BYTES = 2 << 30  # held in memory at a time, once as tensors and once as file content
COPIED_SUFFIXES = {".json", ".jinja", ".txt", ".md", ".model", ".tiktoken"}
COPIED_STEMS = ("LICENSE", "NOTICE", "USAGE_POLICY")
READERS = "only firesteel reads this checkpoint: transformers supports MXFP4 in experts only"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeReport:
    """Result of `quantize_checkpoint`."""

    target: Path
    mxfp4_layers: tuple[str, ...]  # dense layers that the result holds in MXFP4
    layers: tuple[QuantizedLayer, ...]  # those quantised in this call, with their errors
    bytes_before: int  # of all weights
    bytes_after: int
    seconds: float

    def in_words(self) -> list[str]:
        """Returns the report as lines of text."""
        return [
            *(layer.in_words() for layer in self.layers),
            f"{self.target}: {self.bytes_before / 1e9:.3f} GB became {self.bytes_after / 1e9:.3f} GB "
            f"in {self.seconds:.1f} s",
            READERS,
        ]

    def as_dict(self) -> dict[str, Any]:
        layers = [
            {
                "layer": layer.layer,
                "matrices": layer.matrices,
                "bytes_before": layer.bytes_before,
                "bytes_after": layer.bytes_after,
                "relative_rms": layer.relative_rms,
                "worst": layer.worst,
            }
            for layer in self.layers
        ]
        return {
            "target": str(self.target),
            "mxfp4_layers": list(self.mxfp4_layers),
            "layers": layers,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "seconds": self.seconds,
        }


def quantize_checkpoint(
    source: Path,
    target: Path,
    layers: Sequence[str],
    progress: Progress | None = None,
    *,
    workers: int = 8,
    shard_bytes: int = SHARD_BYTES,
) -> QuantizeReport:
    """Writes the checkpoint of `source` to `target` with `layers` in MXFP4; `progress` counts the bytes read.

    `target` must not exist or be an empty folder; if this fails, it is removed or emptied again.
    """
    start = time.perf_counter()
    spec = read_spec(source)
    held = replace(spec, mxfp4_layers=_held(spec, layers, source))
    stored = find_tensors(source)
    check_tensors(stored, spec, source)
    planned = named_tensors(empty_weights(held, torch.device("meta")), held)
    before = sum(tensor.num_bytes for tensor in stored.values())
    after = sum(tensor.nbytes for tensor in planned.values())
    with _whole_or_nothing(target, after):
        quantized = _write_shards(target, planned, stored, progress, workers, shard_bytes)
        _copy_others(source, target)
        _write_config(source, target, held)
    return QuantizeReport(
        target=target,
        mxfp4_layers=held.mxfp4_layers,
        layers=quantized,
        bytes_before=before,
        bytes_after=after,
        seconds=time.perf_counter() - start,
    )


def _held(spec: ModelSpec, layers: Sequence[str], source: Path) -> tuple[str, ...]:
    check_names(layers)
    asked = in_order(layers)
    if not asked:
        raise SpecError(f"nothing to quantise: name some of {', '.join(DENSE_LAYERS)}, or all")
    if set(asked) <= set(spec.mxfp4_layers):
        raise SpecError(f"nothing to quantise: {source} holds {', '.join(asked)} in MXFP4 already")
    return in_order([*spec.mxfp4_layers, *asked])


def _write_shards(
    target: Path,
    planned: Mapping[str, Tensor],
    stored: Mapping[str, StoredTensor],
    progress: Progress | None,
    workers: int,
    shard_bytes: int,
) -> tuple[QuantizedLayer, ...]:
    shards = split(planned, shard_bytes)
    layers: dict[str, QuantizedLayer] = {}
    total, done = sum(tensor.num_bytes for tensor in stored.values()), 0
    for file_name, names in shards.items():
        tensors = {name: torch.empty_like(planned[name], device="cpu") for name in names}
        report = fill(tensors, stored, workers=workers, progress=shift(progress, done, total))
        check_scales(tensors, stored)
        save_tensors(target / file_name, tensors)
        done += report.num_bytes
        for layer in report.quantized:
            add(layers, layer)
    write_index(target, planned, shards)
    return tuple(layers.values())


def _copy_others(source: Path, target: Path) -> None:
    """Copies tokenizer, generation settings, chat template and licence: everything but weights and config.json."""
    for path in sorted(source.iterdir()):
        is_copied = path.suffix in COPIED_SUFFIXES or path.name.startswith(COPIED_STEMS)
        if path.is_file() and is_copied and path.name not in (INDEX, "config.json"):
            shutil.copyfile(path, target / path.name)


def _write_config(source: Path, target: Path, held: ModelSpec) -> None:
    """Writes the source's complete config.json with the list of layers that are now MXFP4."""
    content = read_object(source / "config.json", CheckpointError, CURE)
    content["quantization_config"] |= write_quantization(held.mxfp4_layers)
    write_json(target / "config.json", content)


@contextmanager
def _whole_or_nothing(target: Path, needed: int) -> Iterator[None]:
    """Creates the folder; if its body fails, removes everything that was written."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise CheckpointError(f"{target} exists and is not an empty folder: name a new one")
    is_new, is_complete = not target.exists(), False
    try:
        target.mkdir(parents=True, exist_ok=True)
        _check_disk(target, needed)
        yield
        is_complete = True
    except OSError as error:
        raise CheckpointError(f"cannot write {error.filename or target}: {error.strerror}") from error
    finally:
        if not is_complete and target.is_dir():
            _remove(target, is_new)


def _check_disk(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target).free
    if needed > free:
        raise CheckpointError(
            f"the checkpoint takes {needed / GIB:.1f} GiB and the disk of {target} has {free / GIB:.1f} GiB free: "
            "free some or name a folder on another disk"
        )


def _remove(target: Path, is_new: bool) -> None:
    for path in target.iterdir():
        path.unlink()
    if is_new:
        target.rmdir()
