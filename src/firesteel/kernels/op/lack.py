"""Reasons why no implementation of a name runs on a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from firesteel.device import DeviceSpec

if TYPE_CHECKING:
    from firesteel.kernels.op.op import Implementation


def explain_lack(implementations: Iterable[Implementation[Any, Any]], device: DeviceSpec) -> str | None:
    """Returns why none of the implementations runs on the device, each reason once, or None if one does."""
    reasons = {implementation.name: implementation.needs(device) for implementation in implementations}
    if None in reasons.values():
        return None
    if len(set(reasons.values())) == 1:
        return next(iter(reasons.values()))
    return "cannot run here: " + "; ".join(f"{name} {why}" for name, why in reasons.items())
