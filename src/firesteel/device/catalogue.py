"""GPUs by name, with the properties that settings and plans depend on: for answers about a GPU that is not here."""

from __future__ import annotations

import re

import torch

from firesteel.device import GIB, DeviceSpec
from firesteel.errors import UserError

MIB = 1 << 20
# Longer names, without "nvidia", "geforce", spaces, dashes and underscores.
ALIASES = {
    "dgxspark": "gb10",
    "spark": "gb10",
    "gracegb10": "gb10",
    "h100sxm": "h100",
    "h200sxm": "h200",
    "rtx5090": "5090",
    "rtxpro6000": "pro6000",
    "rtxpro6000blackwell": "pro6000",
}


def shorten_name(text: str) -> str:
    """Returns the name that tables use for a GPU: "DGX Spark" and "NVIDIA GB10" are gb10; others only shortened."""
    plain = re.sub(r"[\s_-]+|nvidia|geforce", "", text.lower())
    return ALIASES.get(plain, plain)


def _gpu(
    name: str, capability: tuple[int, int], sms: int, l2_mib: int, gib: float, unified: bool = False
) -> DeviceSpec:
    return DeviceSpec(
        torch_device=torch.device("cuda:0"),
        name=name,
        capability=capability,
        num_sms=sms,
        l2_bytes=l2_mib * MIB,
        memory_bytes=int(gib * GIB),
        is_unified=unified,
    )


# Data sheets; memory as the driver, or on unified memory the system, counts it.
CATALOGUE = {
    "gb10": _gpu("NVIDIA GB10", (12, 1), 48, 24, 119, unified=True),
    "h100": _gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 50, 79),
    "h200": _gpu("NVIDIA H200", (9, 0), 132, 60, 139),
    "b200": _gpu("NVIDIA B200", (10, 0), 148, 126, 178),
    "5090": _gpu("NVIDIA GeForce RTX 5090", (12, 0), 170, 96, 31),
    "pro6000": _gpu("NVIDIA RTX PRO 6000 Blackwell", (12, 0), 188, 128, 95),
}


def find_listed_gpu(name: str) -> DeviceSpec:
    """Returns the properties of a GPU by its name or a longer one, whether or not it is present."""
    device = CATALOGUE.get(shorten_name(name))
    if device is None:
        raise UserError(f"there is no GPU {name!r} in the table; it has {', '.join(CATALOGUE)}")
    return device
