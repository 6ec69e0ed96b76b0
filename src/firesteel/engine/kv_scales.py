"""The file of scales for FP8 keys and values, and whether one is wanted; knows no model and how no scale was found.

{"format": "firesteel-kv-scales-1", "num_layers": 2, "layers": [{"key": 0.125, "value": 0.0625}, ...]}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from firesteel.config import CacheConfig
from firesteel.errors import UserError
from firesteel.types import KvScales

FORMAT = "firesteel-kv-scales-1"
SMALLEST, GREATEST = 2.0**-126, 2.0**127  # scales are float32, none of them subnormal
CURE = "make one with firesteel calibrate"


class ScaleError(UserError):
    """A file of scales that cannot be used, or that nothing would use."""


def find_scales(config: CacheConfig, num_layers: int) -> KvScales | None:
    """Those of the file that is configured, for a model of so many layers."""
    if not config.kv_scales:
        return None
    if config.kv_dtype != "fp8":
        raise ScaleError(
            f"kv_scales = {config.kv_scales!r} is for fp8 keys and values, not kv_dtype = {config.kv_dtype}: "
            "add --kv-dtype fp8, or leave the scales out"
        )
    return read_scales(Path(config.kv_scales), num_layers)


def read_scales(path: Path, num_layers: int) -> KvScales:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScaleError(f"cannot read the scales {path}: {error.strerror}; {CURE}") from error
    except ValueError as error:
        raise ScaleError(f"{path} is not valid JSON, or cut off: {error}; {CURE}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ScaleError(f"{path} is no file of scales: its format is not {FORMAT!r}; {CURE}")
    layers = content.get("layers")
    if not isinstance(layers, list) or content.get("num_layers") != len(layers):
        raise ScaleError(f"{path}: num_layers and the number of layers differ: the file is damaged; {CURE}")
    if len(layers) != num_layers:
        raise ScaleError(f"{path} is of a model of {len(layers)} layers, this one has {num_layers}; {CURE}")
    keys, values = (
        tuple(_scale(layer, name, f"{path}: layer {number}") for number, layer in enumerate(layers))
        for name in ("key", "value")
    )
    return KvScales(keys=keys, values=values)


def write_scales(path: Path, scales: KvScales) -> None:
    """Refuses to overwrite."""
    layers = [{"key": key, "value": value} for key, value in zip(scales.keys, scales.values, strict=True)]
    content = {"format": FORMAT, "num_layers": len(layers), "layers": layers}
    check_writable(path)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def check_writable(path: Path) -> None:
    """Before a long measurement rather than after it."""
    if path.exists():
        raise ScaleError(f"{path} exists already: name another file, or remove it")
    if not path.parent.is_dir():
        raise ScaleError(f"{path.parent} is not a folder: make it, or name another file")


def _scale(layer: Any, name: str, place: str) -> float:
    value: Any = layer.get(name) if isinstance(layer, dict) else None
    if type(value) not in (int, float) or not SMALLEST <= value <= GREATEST:
        raise ScaleError(f"{place}: its {name} scale is {value!r}, not a positive, finite float32; {CURE}")
    return float(value)
