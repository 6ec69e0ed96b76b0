"""Files of tiles and launch options measured on one GPU, and the options in use in this process.

{"format": "firesteel-tiles-1", "gpu": "NVIDIA H200", "triton": "3.6.0", "kernels": "0f3a...",
 "tiles": {"moe_matmul bf16 128x2880x2880": {"32": "16x64"}},
 "options": {"fc1 COLUMNS=64 DEPTH=128 ...": {"DEPTH": 64, "num_stages": 5}}}

The caller of an op pins its `tiles`: a tile measured for M tokens is used from more than M/2 up to M tokens.
`options` change how a kernel is compiled, not what it computes or how many CTAs run.

`tiles/` holds files that ship with the package, one per GPU. A file that was measured with this Triton and these
kernels is used unless the user names another. Without a file, the tiles in the code of the ops are used.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firesteel.atomic import write_atomically
from firesteel.device import DeviceSpec
from firesteel.errors import UserError
from firesteel.kernels.tiles.stamp import hash_kernels
from firesteel.kernels.tiles.tile_pin import AUTO, parse_tile

FORMAT = "firesteel-tiles-1"
CURE = "make one with firesteel tune, or leave --tiles-file out"
NONE = "none"  # no file, not even a shipped one
SHIPPED = Path(__file__).parent
Options = Mapping[str, Any]
_DEEP = {"DEPTH": (64, 128, 256), "num_warps": (4, 8), "num_stages": (2, 3, 4, 5, 6)}
# Options of each kernel that may vary, and their values.
VARIED: dict[str, dict[str, tuple[int, ...]]] = {
    "fc1": _DEEP,
    "fc2": _DEEP,
    "mxfp4_linear_kernel": _DEEP,
    "tile_kernel": {"COLUMNS": (32, 64, 128, 256), "num_warps": (4, 8), "num_stages": (2, 3, 4, 5, 6)},
    "vector_kernel": {"COLUMNS": (512, 1024, 2048), "num_warps": (2, 4, 8)},
    "attend": {"TILE_KEYS": (32, 64, 128), "num_warps": (2, 4, 8), "num_stages": (3, 5, 7)},
}


class TilesError(UserError):
    """A file of tiles that cannot be used here."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """Tiles and options that replace those in the code; empty if nothing is replaced."""

    tiles: Mapping[str, Mapping[int, str]] = field(default_factory=dict)  # by `tile_key`, then by tokens
    options: Mapping[str, Options] = field(default_factory=dict)  # changed options, by `launch_key`
    _kept: dict[tuple[Any, ...], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def find_tile(self, op: str, activation: str, shape: Sequence[int], tokens: int) -> str:
        """Returns ROWSxCOLUMNS, or auto if nothing was measured near this number of tokens."""
        key = (op, activation, tuple(shape), tokens)
        tile = self._kept.get(key)
        if tile is None:
            tile = self._kept[key] = self._find_tile(op, activation, shape, tokens)
        return tile

    def _find_tile(self, op: str, activation: str, shape: Sequence[int], tokens: int) -> str:
        measured = self.tiles.get(tile_key(op, activation, shape))
        if measured is None:
            return AUTO
        nearest = min((size for size in measured if size >= tokens), default=None)
        return AUTO if nearest is None or 2 * tokens <= nearest else measured[nearest]


def tile_key(op: str, activation: str, shape: Sequence[int]) -> str:
    """Returns the key of a tile; `shape` is the weight's."""
    return f"{op} {activation} {'x'.join(map(str, shape))}"


def launch_key(kernel: str, options: Options) -> str:
    """Returns the key of a launch; strides are left out, because they depend on the caller's tensors."""
    return " ".join((kernel, *(f"{name}={options[name]}" for name in sorted(options) if "STRIDE" not in name)))


_changes: dict[str, Options] = {}
_watchers: list[dict[str, Options]] = []
_current_revision = 0


def options_revision() -> int:
    """Returns a number that changes when the options in use change, or launches start or stop being watched."""
    return _current_revision


def _revise() -> None:
    global _current_revision
    _current_revision += 1


def change_options(kernel: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that a launch uses: `options` itself if nothing changes."""
    if not _changes and not _watchers:
        return options
    key = launch_key(kernel, options)
    for seen in _watchers:
        seen[key] = options
    return {**options, **_changes[key]} if key in _changes else options


@contextmanager
def watch_options() -> Iterator[dict[str, Options]]:
    """Yields a dictionary that receives the unchanged options of every launch in the block, by key."""
    seen: dict[str, Options] = {}
    _watchers.append(seen)
    _revise()
    try:
        yield seen
    finally:
        _watchers.remove(seen)
        _revise()


def use_options(options: Mapping[str, Options]) -> None:
    """Replaces the options in use, for all later launches of this process."""
    _changes.clear()
    _changes.update(options)
    _revise()


@contextmanager
def using_options(options: Mapping[str, Options]) -> Iterator[None]:
    """Replaces the options in use within the block."""
    before = dict(_changes)
    use_options(options)
    try:
        yield
    finally:
        use_options(before)


def load_tuned(path: str, device: DeviceSpec) -> Tuned:
    """Loads the configured file; `auto` or an empty name: the file that ships for this GPU, if any."""
    is_auto = path in (AUTO, "")
    if is_auto and device.is_cuda:
        shipped, _ = find_shipped(device)
        return Tuned() if shipped is None else read_tuned(shipped, device)
    if is_auto or path == NONE:
        return Tuned()
    if not device.is_cuda:
        raise TilesError(f"tiles_file = {path!r} is for a GPU, this is {device.name}: leave --tiles-file out")
    return read_tuned(Path(path), device)


def find_shipped(device: DeviceSpec) -> tuple[Path | None, str]:
    """Returns the file to use, if any, and a text that names it or says why there is none."""
    why = f"no file of tiles ships for {device.name}"
    if importlib.util.find_spec("triton") is None:
        return None, "none: there is no Triton"
    for path in sorted(SHIPPED.glob("*.json")):
        content = _read(path)
        if content.get("gpu") != device.name:
            continue
        others = _list_others(content, device)
        if not others:
            return path, path.name
        why = f"{path.name} was measured with {', '.join(others)}"
    return None, f"{why}: tiles of the code are used"


def read_tuned(path: Path, device: DeviceSpec) -> Tuned:
    content = _read(path)
    for name, here in surroundings(device).items():
        if content.get(name) != here:
            raise TilesError(f"{path} was measured with {name} {content.get(name)}, this is {here}; {CURE}")
    tiles, options = (_table(path, content, name) for name in ("tiles", "options"))
    for key, changed in options.items():
        _check_options(path, key, changed)
    return Tuned({key: _tiles(path, key, sizes) for key, sizes in tiles.items()}, options)


def read_earlier(path: Path, device: DeviceSpec) -> tuple[Tuned, str]:
    """Reads what is still valid in a file that will be replaced; returns it and, if it is nothing, the reason.

    Raises if the path is not a file of tiles, which must not be replaced.
    """
    if not path.exists() or not path.stat().st_size:
        return Tuned(), ""
    others = _list_others(_read(path), device)
    if others:
        return Tuned(), f"was measured with {', '.join(others)}"
    try:
        return read_tuned(path, device), ""
    except UserError as error:
        return Tuned(), f"has values that no kernel accepts ({error})"


def _list_others(content: Mapping[str, Any], device: DeviceSpec) -> list[str]:
    """Returns the surroundings of a file that differ from those here."""
    here = surroundings(device)
    return [f"{name} {content.get(name)}" for name in here if content.get(name) != here[name]]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TilesError(f"cannot read the tiles {path}: {error.strerror}; {CURE}") from error
    except ValueError as error:
        raise TilesError(f"{path} is not valid JSON, or cut off: {error}; {CURE}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TilesError(f"{path} is not a file of tiles: its format is not {FORMAT!r}; {CURE}")
    return content


def write_tuned(path: Path, tuned: Tuned, device: DeviceSpec) -> None:
    content = {"format": FORMAT, **surroundings(device), "tiles": tuned.tiles, "options": tuned.options}
    try:
        write_atomically(path, content)
    except OSError as error:
        raise TilesError(f"cannot write the tiles {path}: {error.strerror}; name another file") from error


def surroundings(device: DeviceSpec) -> dict[str, str]:
    """Returns what must be equal on the machine that measures tiles and on the one that uses them."""
    import triton

    return {"gpu": device.name, "triton": triton.__version__, "kernels": hash_kernels()}


def _table(path: Path, content: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    table = content.get(name)
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        raise TilesError(f"{path}: {name} must be a table of tables: the file is damaged; {CURE}")
    return table


def _check_options(path: Path, key: str, changed: Options) -> None:
    varied = VARIED.get(key.split()[0], {})
    for name, value in changed.items():
        if type(value) is not int or value not in varied.get(name, ()):
            raise TilesError(f"{path}: {key}: {name} = {value!r} is not an option of that kernel; {CURE}")


def _tiles(path: Path, key: str, sizes: Mapping[str, Any]) -> dict[int, str]:
    for tokens, tile in sizes.items():
        if not tokens.isdigit() or not isinstance(tile, str):
            raise TilesError(f"{path}: {key}: {tokens!r}: {tile!r} is not a tile for a number of tokens; {CURE}")
        parse_tile(tile)
    return {int(tokens): tile for tokens, tile in sizes.items()}
