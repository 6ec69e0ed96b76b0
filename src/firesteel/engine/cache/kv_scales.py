"""The file of scales for FP8 keys and values: reading, checking and writing.

{"format": "firesteel-kv-scales-1", "num_layers": 2, "layers": [{"key": 0.125, "value": 0.0625}, ...]}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from firesteel.config import CacheConfig
from firesteel.errors import UserError
from firesteel.types import KvScales
from firesteel.untrusted.json_file import read_object

FORMAT = "firesteel-kv-scales-1"
SMALLEST, GREATEST = 2.0**-126, 2.0**127  # scales are float32, none of them subnormal
CURE = "make one with firesteel calibrate"


class ScaleError(UserError):
    """Raised for a scale file that cannot be read or written, or that the settings would not use."""


def find_scales(config: CacheConfig, num_layers: int) -> KvScales | None:
    """Returns the scales of the configured file for a model of `num_layers` layers, or None without a file."""
    if not config.kv_scales:
        return None
    if config.kv_dtype != "fp8":
        raise ScaleError(
            f"kv_scales = {config.kv_scales!r} is for fp8 keys and values, not kv_dtype = {config.kv_dtype}: "
            "add --kv-dtype fp8, or leave the scales out"
        )
    return read_scales(Path(config.kv_scales), num_layers)


def read_scales(path: Path, num_layers: int) -> KvScales:
    """Reads and checks a scale file; errors name the layer and the cure."""
    content = read_object(path, ScaleError, CURE)
    if content.get("format") != FORMAT:
        raise ScaleError(f"{path} is not a scale file: its format is not {FORMAT!r}; {CURE}")
    layers = content.get("layers")
    if not isinstance(layers, list) or content.get("num_layers") != len(layers):
        raise ScaleError(f"{path}: num_layers and the number of layers differ: the file is damaged; {CURE}")
    if len(layers) != num_layers:
        raise ScaleError(f"{path} is for a model of {len(layers)} layers, this model has {num_layers}; {CURE}")
    keys, values = (
        tuple(_scale(layer, name, f"{path}: layer {number}") for number, layer in enumerate(layers))
        for name in ("key", "value")
    )
    return KvScales(keys=keys, values=values)


def write_scales(path: Path, scales: KvScales) -> None:
    """Writes a new file; raises if it exists."""
    with new_file(path):
        fill_file(path, scales)


@contextmanager
def new_file(path: Path) -> Iterator[None]:
    """Creates an empty file before a long measurement, and removes it if its body fails."""
    if not path.parent.is_dir():
        raise ScaleError(f"{path.parent} is not a folder: make it, or name another file")
    try:
        path.touch(exist_ok=False)
    except FileExistsError as error:
        raise ScaleError(f"{path} exists already: name another file, or remove it") from error
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield
    except BaseException:
        with suppress(OSError):  # the first error matters more
            path.unlink()
        raise


def fill_file(path: Path, scales: KvScales) -> None:
    """Writes the scales to a file that `new_file` created."""
    layers = [{"key": key, "value": value} for key, value in zip(scales.keys, scales.values, strict=True)]
    content = {"format": FORMAT, "num_layers": len(layers), "layers": layers}
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> ScaleError:
    return ScaleError(f"cannot write the scales {path}: {error.strerror}; name a file in a folder with room for it")


def _scale(layer: Any, name: str, place: str) -> float:
    value: Any = layer.get(name) if isinstance(layer, dict) else None
    if type(value) not in (int, float) or not SMALLEST <= value <= GREATEST:
        raise ScaleError(f"{place}: its {name} scale is {value!r}, not a positive, finite float32; {CURE}")
    return float(value)
