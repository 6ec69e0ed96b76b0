"""State of the on-disk caches of compiled kernels, CUDA's and Triton's, at a start."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.kernels.cuda.cache import current_cache, use_cache

CacheFolders = Mapping[str, Path | None]  # keyed by cache; None if it is switched off


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """Kernels that a cache held before, of any program, and those added since; None if it is switched off."""

    held: int | None
    compiled: int | None

    @property
    def state(self) -> str:
        """One word; "incomplete" means that some of the needed kernels were missing."""
        if self.held is None or self.compiled is None:
            return "not kept"
        if not self.compiled:
            return "warm"
        return "incomplete" if self.held else "cold"

    def as_dict(self) -> dict[str, Any]:
        return {"state": self.state, "held": self.held, "compiled": self.compiled}


class CacheWatch:
    """Counts the kernels of each cache at construction and again at `read`."""

    def __init__(self, folders: CacheFolders) -> None:
        self.folders = folders
        self._before = _count_all(folders)

    def read(self) -> dict[str, CacheUse]:
        before, now = self._before, _count_all(self.folders)
        return {name: CacheUse(held=before[name], compiled=_added(before[name], now[name])) for name in now}


def find_caches(device: DeviceSpec, kernel_cache_dir: str) -> CacheFolders:
    """Returns the caches that a model loaded with this kernel_cache_dir uses; a CPU has none."""
    if not device.is_cuda:
        return {}
    use_cache(kernel_cache_dir)
    folders: dict[str, Path | None] = {"CUDA": current_cache().folder}
    if importlib.util.find_spec("triton") is not None:
        folders["Triton"] = _triton_folder()
    return folders


def _triton_folder() -> Path | None:
    import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]

    folder = triton.knobs.cache.dir
    return Path(folder) if folder else None


def _count_all(folders: CacheFolders) -> dict[str, int | None]:
    return {
        name: None if folder is None else len(list(folder.rglob("*.cubin"))) for name, folder in folders.items()
    }


def _added(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else now - before
