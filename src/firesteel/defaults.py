"""The defaults of `firesteel serve` for the GPU at hand: which set, what it changes, why, and at what cost.

A value that the user gives by flag, environment or file is never changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from firesteel.config import Config, Settings, all_settings, resolve
from firesteel.config.presets import AS_SHIPPED, AUTO, NO_COST, PRESETS, SPARK
from firesteel.device import GIB, DeviceSpec
from firesteel.device.host_memory import find_host_memory
from firesteel.kernels.operands.activation import BLOCK_SCALED_TRITON, lacks_native

RESERVED_PART = 8  # of the host's memory, at most, if memory_reserve_gib is not set
UNIFIED_RESERVE_GIB, UNIFIED_RESERVE_PART = 12.0, 10  # the larger of both, of unified memory
GB10 = (12, 1)  # compute capability
RESERVE_WHY = (
    "GPU and host share one memory: the larger of 12 GiB and 10 % stays free, and no request is admitted below it"
)
PAGES_WHY = "the cache takes no more than 4 requests of full length need: the rest of the memory is the host's"


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultChoice:
    """A default that was chosen for the GPU."""

    setting: str
    value: Any
    why: str
    quality: str
    override: str  # flags that switch it off

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeDefaults:
    """Settings of a server with the defaults for its GPU applied."""

    settings: Settings
    preset: str
    choices: tuple[DefaultChoice, ...]

    @property
    def config(self) -> Config:
        return self.settings.config


def choose_preset(device: DeviceSpec) -> str:
    """Returns the set of defaults for a GPU: that of GB10, elsewhere the checkpoint's own formats."""
    return SPARK if device.capability == GB10 and device.is_unified else AS_SHIPPED


def find_defaults(
    flags: Mapping[str, Any],
    device: DeviceSpec,
    *,
    environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    triton: tuple[int, int] | None = None,
) -> ServeDefaults:
    """Resolves the settings of `firesteel serve` on a device.

    `triton` is the version to assume for a GPU that is not here; None: the one installed.
    """
    settings = resolve(flags, environ=environ, file=file, auto_preset=choose_preset(device))
    asked = settings.config.model.preset
    preset = choose_preset(device) if asked == AUTO else asked
    is_auto = asked == AUTO
    choices = []
    for value in PRESETS[preset]:
        if settings.origins[value.setting] != f"preset {preset}":
            continue
        why_not = _find_obstacle(device, triton) if is_auto and value.setting == "prefill_activation" else None
        if why_not is not None:
            settings = _replace(settings, "prefill_activation", AUTO, f"preset {preset}, not applied")
            choices.append(_choice(value.setting, AUTO, f"as --activation: {value.value} {why_not}", NO_COST))
        else:
            choices.append(_choice(value.setting, value.value, value.why, value.quality))
    if settings.origins["prepare"] == "default":
        settings = _replace(settings, "prepare", True, "default of serve")
    settings, reserved = _reserve(settings, device)
    return ServeDefaults(settings=settings, preset=preset, choices=(*choices, *reserved))


def find_reserve_gib(device: DeviceSpec, usual: float) -> float:
    """Returns the GiB to keep free by default: more where the host shares the memory, less if it is small."""
    if device.is_unified:
        return max(UNIFIED_RESERVE_GIB, device.memory_bytes / UNIFIED_RESERVE_PART / GIB)
    return min(usual, find_host_memory().total_bytes / RESERVED_PART / GIB)


def _reserve(settings: Settings, device: DeviceSpec) -> tuple[Settings, list[DefaultChoice]]:
    """Applies the defaults of memory; those of unified memory are choices to be shown."""
    model, cache, choices = settings.config.model, settings.config.cache, []
    is_default = settings.origins["memory_reserve_gib"] == "default"
    if is_default and not model.gpu_memory_utilization:
        gib = find_reserve_gib(device, model.memory_reserve_gib)
        settings = _replace(settings, "memory_reserve_gib", gib, "default of serve")
        if device.is_unified:
            choices.append(_choice("memory_reserve_gib", round(gib, 1), RESERVE_WHY, NO_COST))
    if device.is_unified and not cache.kv_cache_gib:
        choices.append(_choice("kv_cache_gib", "4 requests of full length", PAGES_WHY, NO_COST))
    return settings, choices


def _find_obstacle(device: DeviceSpec, triton: tuple[int, int] | None) -> str | None:
    """Returns why block-scaled activations would not be multiplied natively, or None."""
    if triton is None:
        return lacks_native(device.capability, "mxfp8")
    return None if triton >= BLOCK_SCALED_TRITON else f"needs Triton >= 3.8, not {triton[0]}.{triton[1]}"


def _choice(setting: str, value: Any, why: str, quality: str) -> DefaultChoice:
    default = all_settings()[setting].default
    shown = '""' if default == "" else "N" if setting == "kv_cache_gib" else default
    flag = f"--{setting.replace('_', '-')} {shown}"
    return DefaultChoice(setting=setting, value=value, why=why, quality=quality, override=flag)


def _replace(settings: Settings, name: str, value: Any, origin: str) -> Settings:
    section = all_settings()[name].section
    changed = dataclasses.replace(getattr(settings.config, section), **{name: value})
    config = dataclasses.replace(settings.config, **{section: changed})
    return Settings(config, {**settings.origins, name: origin})
