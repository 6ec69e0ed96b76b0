"""Loads a draft model of any of the formats that are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from firesteel.device import DeviceSpec
from firesteel.model.drafters.dflash import load_dflash
from firesteel.model.drafters.drafter import Drafter
from firesteel.model.drafters.eagle3 import load_eagle3
from firesteel.model.drafters.errors import DrafterError
from firesteel.model.gpt_oss import GptOss
from firesteel.untrusted.json_file import read_object, shorten

EAGLE3, DFLASH = "eagle3", "dflash"
KINDS: dict[str, Callable[[Path, GptOss, DeviceSpec], Drafter]] = {EAGLE3: load_eagle3, DFLASH: load_dflash}


def find_kind(directory: Path) -> str:
    """Returns the kind of draft model that a folder holds."""
    config = read_object(directory / "config.json", DrafterError, "download the draft model again")
    names = str([config.get("architectures"), config.get("speculators_model_type")])
    for kind in KINDS:
        if kind in names.lower():
            return kind
    raise DrafterError(
        f"{directory}: architectures {shorten(config.get('architectures'))}: not a known draft model; known kinds: "
        f"{', '.join(KINDS)}"
    )


def load_drafter(directory: Path, kind: str, model: GptOss, device: DeviceSpec) -> Drafter:
    """Loads a draft model of `kind` for the target `model`; "auto" takes the kind that the folder holds."""
    held = find_kind(directory)
    if kind not in (held, "auto"):
        raise DrafterError(
            f"--speculate {kind}: {directory} holds a draft model for --speculate {held}: give that, or auto"
        )
    return KINDS[held](directory, model, device)
