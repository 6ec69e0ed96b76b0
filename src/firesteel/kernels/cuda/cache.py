"""Keeps compiled CUDA C++ on disk; files are written atomically and checked when read."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from firesteel.config import find_user_cache, resolve
from firesteel.kernels.cuda.binary import CudaBinary

DIGEST_BYTES = 32
LENGTH_BYTES = 8
_log = logging.getLogger(__name__)


class CubinCache:
    """Files named by what was compiled. Where the disk fails it warns once and keeps nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._has_warned = False

    def get(self, key: str, build: Callable[[], CudaBinary]) -> CudaBinary:
        """What is kept under `key`, or what `build` makes, kept from now on."""
        if (kept := self._load(key)) is not None:
            return kept
        binary = build()
        try:
            self._store(key, binary)
        except OSError as error:
            self._warn(error)
        return binary

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.cubin"

    def _load(self, key: str) -> CudaBinary | None:
        try:
            content = self.path(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(error)
            return None
        digest, payload = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        return _unpack(payload) if digest == _digest(key, payload) else None

    def _store(self, key: str, binary: CudaBinary) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        payload = _pack(binary)
        handle, unfinished = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".unfinished")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_digest(key, payload) + payload)
            os.replace(unfinished, self.path(key))
        except BaseException:
            os.unlink(unfinished)
            raise

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            _log.warning(
                "compiled kernels are not kept in %s (%s): each start compiles anew; kernel_cache_dir moves it",
                self.folder,
                error.strerror,
            )
            self._has_warned = True


class NoCache:
    """Stands for one where there is no folder to keep anything in."""

    folder = None

    def get(self, key: str, build: Callable[[], CudaBinary]) -> CudaBinary:
        return build()


_given: str | None = None  # the kernel_cache_dir of `use_cache`
_current: CubinCache | NoCache | None = None  # once something was built


def current_cache() -> CubinCache | NoCache:
    """In the folder that `use_cache` was given, or that environment and configuration file name."""
    global _current
    if _current is None:
        _current = _open(resolve().config.kernels.kernel_cache_dir if _given is None else _given)
    return _current


def use_cache(given: str) -> None:
    """A kernel_cache_dir: from now on, in the whole process. No folder is looked for before a kernel is built."""
    global _given, _current
    if given != _given:
        _given, _current = given, None


def find_folder(given: str, caches: Path | None) -> Path | None:
    """What kernel_cache_dir means, given the user's folder for caches; None where that takes a home folder."""
    if given:
        folder = os.path.expanduser(given)
        return None if folder.startswith("~") else Path(folder)
    return None if caches is None else caches / "firesteel" / "kernels"


def _open(given: str) -> CubinCache | NoCache:
    if (folder := find_folder(given, find_user_cache())) is not None:
        return CubinCache(folder)
    _log.warning(
        "compiled kernels are not kept, as there is no home folder: each start compiles anew; kernel_cache_dir "
        "names a folder"
    )
    return NoCache()


def _digest(key: str, payload: bytes) -> bytes:
    return hashlib.sha256(key.encode() + payload).digest()


def _pack(binary: CudaBinary) -> bytes:
    return len(binary.cubin).to_bytes(LENGTH_BYTES, "little") + binary.cubin + binary.ptx.encode()


def _unpack(payload: bytes) -> CudaBinary:
    end = LENGTH_BYTES + int.from_bytes(payload[:LENGTH_BYTES], "little")
    return CudaBinary(payload[LENGTH_BYTES:end], payload[end:].decode())
