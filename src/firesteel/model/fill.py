"""Fills tensors from a checkpoint's files and quantises matrices that are stored in BF16 but wanted in MXFP4.

Tensors that are stored in the wanted format are read straight into place. The other matrices pass through a staging
tensor of `STAGED_BYTES` on the device, some rows at a time, so the device never holds all of their BF16 values or
all temporaries of the quantisation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.formats import mxfp4
from firesteel.model.reader import Progress, ReadReport, Stretch, read_all, shift
from firesteel.model.shards import CheckpointError, StoredTensor

CODES, SCALES = "_blocks", "_scales"  # suffixes of the names of an MXFP4 matrix's two parts
STAGED_BYTES = 128 << 20  # of BF16 values read before they are quantised
CHUNK_VALUES = 1 << 20  # quantised at once
CHUNK_BYTES = 80  # of temporaries per value
LAYER_OF = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "o_proj": "o", "lm_head": "lm_head"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLayer:
    """Size and error of the matrices of one kind of layer in MXFP4, compared with their BF16 values."""

    layer: str  # qkv, o or lm_head
    matrices: int = 0  # q, k and v count as three
    values: int = 0
    squares: float = 0.0  # sum over the values
    squared_errors: float = 0.0
    largest_error: float = 0.0

    @property
    def bytes_before(self) -> int:
        return 2 * self.values

    @property
    def bytes_after(self) -> int:
        return self.values * 17 // 32

    @property
    def relative_rms(self) -> float:
        """RMS of the errors divided by RMS of the values."""
        return float((self.squared_errors / self.squares) ** 0.5) if self.squares else 0.0

    @property
    def worst(self) -> float:
        """The largest error of a single value, divided by the RMS of the values."""
        rms = (self.squares / self.values) ** 0.5 if self.values else 0.0
        return float(self.largest_error / rms) if rms else 0.0

    def plus(self, other: QuantizedLayer) -> QuantizedLayer:
        return QuantizedLayer(
            layer=self.layer,
            matrices=self.matrices + other.matrices,
            values=self.values + other.values,
            squares=self.squares + other.squares,
            squared_errors=self.squared_errors + other.squared_errors,
            largest_error=max(self.largest_error, other.largest_error),
        )

    def in_words(self) -> str:
        matrices = "1 matrix" if self.matrices == 1 else f"{self.matrices} matrices"
        return (
            f"{self.layer}: {matrices}, {self.bytes_before / 1e6:.1f} MB in BF16, "
            f"{self.bytes_after / 1e6:.1f} MB in MXFP4, relative rms error {self.relative_rms:.4f}, "
            f"worst value off by {self.worst:.2f} rms"
        )


@dataclass(frozen=True, slots=True)
class LoadReport(ReadReport):
    """Amounts read and quantised; `seconds` covers the reading only."""

    quantized: tuple[QuantizedLayer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """Some rows of a stored BF16 matrix and the targets of their MXFP4 codes and scales."""

    name: str
    stretch: Stretch
    codes: Tensor
    scales: Tensor
    is_first: bool  # whether the matrix begins with them


def fill(
    targets: Mapping[str, Tensor],
    stored: Mapping[str, StoredTensor],
    *,
    workers: int,
    progress: Progress | None = None,
) -> LoadReport:
    """Fills `targets`; those not stored under their own name are codes and scales of a stored BF16 matrix.

    Targets of such codes and scales may have more rows than the matrix: the others are left as they are.
    """
    plain = [_stretch(stored[name], targets[name]) for name in targets if name in stored]
    total = sum(stretch.target.nbytes for stretch in plain) + sum(_bf16_bytes(targets, stored))
    reports: list[ReadReport] = []
    layers: dict[str, QuantizedLayer] = {}

    def read(stretches: list[Stretch]) -> None:
        before = sum(report.num_bytes for report in reports)
        reports.append(read_all(stretches, workers=workers, progress=shift(progress, before, total)))

    if plain:
        read(plain)
    for staged in _staged(targets, stored):
        read([rows.stretch for rows in staged])
        for rows in staged:
            add(layers, _quantize(rows))
    return LoadReport(total, sum(report.seconds for report in reports), tuple(layers.values()))


def _stretch(stored: StoredTensor, target: Tensor) -> Stretch:
    return Stretch(stored.file, stored.offset, target, stored.num_runs, stored.pitch_bytes)


def room_bytes(targets: Mapping[str, Tensor], stored: Mapping[str, StoredTensor]) -> int:
    """Returns the device memory that `fill` needs beyond the targets."""
    staged = sum(_bf16_bytes(targets, stored))
    return min(staged, STAGED_BYTES) + CHUNK_BYTES * min(staged // 2, CHUNK_VALUES)


def add(layers: dict[str, QuantizedLayer], quantized: QuantizedLayer) -> None:
    """Adds `quantized` to the sums of its kind of layer."""
    name = quantized.layer
    layers[name] = layers[name].plus(quantized) if name in layers else quantized


def _to_quantize(targets: Mapping[str, Tensor], stored: Mapping[str, StoredTensor]) -> Iterator[str]:
    """Yields the stored names of the matrices to quantise."""
    return (name.removesuffix(CODES) for name in targets if name.endswith(CODES) and name not in stored)


def _bf16_bytes(targets: Mapping[str, Tensor], stored: Mapping[str, StoredTensor]) -> Iterator[int]:
    return (stored[name].num_bytes for name in _to_quantize(targets, stored))


def _staged(targets: Mapping[str, Tensor], stored: Mapping[str, StoredTensor]) -> Iterator[list[StagedRows]]:
    """Yields everything to quantise, in batches that fit into the staging tensor, which all of them share."""
    all_bytes = sum(_bf16_bytes(targets, stored))
    if not all_bytes:
        return
    device = next(iter(targets.values())).device
    stage = torch.empty(min(all_bytes, STAGED_BYTES) // 2, dtype=torch.bfloat16, device=device)
    staged: list[StagedRows] = []
    taken = 0
    for name in _to_quantize(targets, stored):
        for first, count in _row_ranges(stored[name]):
            size = count * stored[name].shape[1]
            if taken + size > stage.numel():
                yield staged
                staged, taken = [], 0
            staging = stage[taken : taken + size].view(count, -1)
            staged.append(_rows(name, stored[name], targets, first, staging))
            taken += size
    yield staged


def _row_ranges(matrix: StoredTensor) -> Iterable[tuple[int, int]]:
    """Returns (first, count) of the rows that are quantised at once."""
    rows, columns = matrix.shape
    step = max(1, CHUNK_VALUES // columns)
    return ((first, min(step, rows - first)) for first in range(0, rows, step))


def _rows(
    name: str, matrix: StoredTensor, targets: Mapping[str, Tensor], first: int, staging: Tensor
) -> StagedRows:
    count = staging.shape[0]
    return StagedRows(
        name=name,
        stretch=_stretch(matrix.narrow(0, first, count), staging),
        codes=targets[name + CODES].flatten(1)[first : first + count],
        scales=targets[name + SCALES][first : first + count],
        is_first=first == 0,
    )


def _quantize(rows: StagedRows) -> QuantizedLayer:
    values = rows.stretch.target
    try:
        codes, scales = mxfp4.quantize(values)
    except ValueError as error:
        raise CheckpointError(f"{rows.stretch.file}: tensor {rows.name}: {error}") from error
    rows.codes.copy_(codes)
    rows.scales.copy_(scales)
    errors = mxfp4.dequantize(codes, scales).sub_(values)
    return QuantizedLayer(
        layer=next(layer for word, layer in LAYER_OF.items() if word in rows.name),
        matrices=int(rows.is_first),
        values=values.numel(),
        squares=_sum_of_squares(values),
        squared_errors=_sum_of_squares(errors),
        largest_error=float(errors.abs().max()),
    )


def _sum_of_squares(x: Tensor) -> float:
    return float(x.float().square().sum(dtype=torch.float64))
