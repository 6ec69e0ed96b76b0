"""Models on this machine: those of the Hugging Face cache and the built-in one, and whether they can run here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from firesteel.defaults import find_defaults
from firesteel.device import GIB, DeviceSpec, available_bytes
from firesteel.engine.load import find_reserve
from firesteel.errors import UserError
from firesteel.hub.cache import Snapshot, list_repositories, list_snapshots
from firesteel.hub.files import REQUIRED
from firesteel.hub.names import BUILT_IN, find_short_name
from firesteel.model.precision import EXPERTS
from firesteel.model.shards import find_tensors
from firesteel.model.spec import FIXED, ModelSpec, read_spec
from firesteel.model.weights import check_tensors, weight_bytes
from firesteel.untrusted.json_file import read_object

FAMILY = "gpt-oss"
SLOW_GIB = 1.0  # weights beyond this are for GPUs


class Fit(StrEnum):
    """Answer to the question if a model runs on this machine."""

    YES = "yes"
    NOT_NOW = "not now"  # other programs use the memory, or files are missing
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A row of `firesteel list`."""

    name: str  # for other commands; a revision other than main is given to them by its folder
    repository: str  # empty for the built-in model
    revisions: tuple[str, ...]
    commit: str
    folder: Path
    num_bytes: int
    quantisation: str
    is_complete: bool
    fit: Fit
    why: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "repository": self.repository,
            "revisions": list(self.revisions),
            "commit": self.commit,
            "folder": str(self.folder),
            "bytes": self.num_bytes,
            "quantisation": self.quantisation,
            "complete": self.is_complete,
            "runs": self.fit.value,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModels:
    """All rows, and how many repositories of other models the cache has."""

    models: tuple[LocalModel, ...]
    num_others: int


def list_models(device: DeviceSpec) -> LocalModels:
    """Looks at every repository of the cache; asks nobody."""
    built_in = Snapshot(repository="", commit="", revisions=("built in",), folder=BUILT_IN)
    models, others = [describe(built_in, device)], 0
    for repository in list_repositories():
        snapshots = [snapshot for snapshot in list_snapshots(repository) if is_gpt_oss(snapshot)]
        models += [describe(snapshot, device) for snapshot in snapshots]
        others += not snapshots
    return LocalModels(models=tuple(models), num_others=others)


def is_gpt_oss(snapshot: Snapshot) -> bool:
    """Judges by config.json, and by the name as long as that was not fetched or cannot be read."""
    try:
        config = read_object(snapshot.folder / "config.json", UserError, "")
    except UserError:
        return FAMILY in snapshot.repository.lower()
    return config.get("model_type") == FIXED["model_type"]


def check_checkpoint(folder: Path, spec: ModelSpec | None = None) -> None:
    """Raises UserError if a file is missing, or if loading would refuse one. Reads no data of tensors."""
    for name in REQUIRED:
        if not (folder / name).is_file():
            raise UserError(f"{name} is missing from {folder}: fetch it with `firesteel pull`")
    check_tensors(find_tensors(folder), read_spec(folder) if spec is None else spec, folder)


def describe(snapshot: Snapshot, device: DeviceSpec) -> LocalModel:
    """Builds the row of a snapshot: what is wrong with it in itself comes before what this machine lacks."""
    spec, refusal, gap = None, "", ""
    try:
        spec = read_spec(snapshot.folder)
    except UserError as error:
        refusal = str(error)
    try:
        check_checkpoint(snapshot.folder, spec)
    except UserError as error:
        gap = str(error)
    if spec is None:
        fit, why = (Fit.NO, refusal) if (snapshot.folder / "config.json").is_file() else (Fit.UNKNOWN, gap)
    else:
        fit, why = judge(spec, device)
        if gap and fit is not Fit.NO:
            fit, why = Fit.NOT_NOW, gap
    return LocalModel(
        name=find_short_name(snapshot.repository) or snapshot.folder.name,
        repository=snapshot.repository,
        revisions=snapshot.revisions,
        commit=snapshot.commit,
        folder=snapshot.folder,
        num_bytes=snapshot.count_bytes(),
        quantisation="unknown" if spec is None else f"MXFP4: {', '.join((EXPERTS, *spec.mxfp4_layers))}",
        is_complete=not gap,
        fit=fit,
        why=why,
    )


def judge(spec: ModelSpec, device: DeviceSpec) -> tuple[Fit, str]:
    """Compares the weights with the memory of the device, as `firesteel serve` does before it loads them."""
    reserve_gib = find_reserve(device, find_defaults({}, device).config.model)
    weights_gib, total_gib = weight_bytes(spec) / GIB, device.memory_bytes / GIB
    words = f"the weights take {weights_gib:.{1 if weights_gib > 1 else 2}f} GiB, {device.name} has {total_gib:.1f}"
    if weights_gib + reserve_gib > total_gib:
        return Fit.NO, f"{words}, of which {reserve_gib:.1f} stay free"
    free_gib = available_bytes(device) / GIB
    if weights_gib + reserve_gib > free_gib:
        return Fit.NOT_NOW, f"{words}, of which {free_gib:.1f} are free and {reserve_gib:.1f} must stay so"
    is_slow = not device.is_cuda and weights_gib > SLOW_GIB
    return Fit.YES, f"{words}; slow without a GPU" if is_slow else words
