"""Keeps compiled CUDA C++ on disk; files are written atomically and checked when read."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from firesteel.config import find_user_cache, resolve
from firesteel.errors import KernelError
from firesteel.kernels.cuda.binary import CudaBinary

DIGEST_BYTES = 32
LENGTH_BYTES = 8
_log = logging.getLogger(__name__)


class CubinCache:
    """Files named by a hash of what was compiled. If the disk fails it warns once and keeps nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._has_warned = False
        self._is_checked = False

    def get(self, key: str, build: Callable[[], CudaBinary]) -> CudaBinary:
        """Returns the binary kept under `key`, or builds and keeps it."""
        if not self._is_checked:
            self._check_folder()
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

    def _check_folder(self) -> None:
        """Raises if another user could put machine code into the folder, which would run with our rights."""
        with contextlib.suppress(OSError):  # without a folder there is nothing to check; it is made for us alone
            status = self.folder.stat()
            if reason := why_unsafe(status):
                raise KernelError(
                    f"the folder of compiled kernels {self.folder} {reason}, who could replace a kernel: remove "
                    f"it, run `chmod go-w {self.folder}` as its owner, or name another with --kernel-cache-dir"
                )
            self._is_checked = True

    def _load(self, key: str) -> CudaBinary | None:
        path = self.path(key)
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                if reason := why_unsafe(os.fstat(file.fileno())):
                    raise KernelError(f"the compiled kernel {path} {reason}, who could have changed it: remove it")
                content = file.read()
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


def why_unsafe(status: os.stat_result) -> str:
    """Returns how users other than root and this one could change a file or folder; empty if they cannot."""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}"
    return "can be written by other users" if status.st_mode & 0o022 else ""


class NoCache:
    """Builds every time: there is no folder to keep binaries in."""

    folder = None

    def get(self, key: str, build: Callable[[], CudaBinary]) -> CudaBinary:
        return build()


_given: str | None = None  # the kernel_cache_dir of `use_cache`
_current: CubinCache | NoCache | None = None  # opened when the first kernel is built


def current_cache() -> CubinCache | NoCache:
    """Returns the cache in the folder given to `use_cache`, or else in the one that the configuration names."""
    global _current
    if _current is None:
        _current = _open(resolve().config.kernels.kernel_cache_dir if _given is None else _given)
    return _current


def use_cache(given: str) -> None:
    """Sets kernel_cache_dir for the whole process; the folder is opened when the next kernel is built."""
    global _given, _current
    if given != _given:
        _given, _current = given, None


def find_folder(given: str, caches: Path | None) -> Path | None:
    """Returns the folder that kernel_cache_dir names, by default in the user's folder for caches.

    Returns None if it would be in a home folder and there is none.
    """
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
