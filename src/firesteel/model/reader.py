"""Reads byte ranges of files into tensors with several threads, without mmap.

mmap loads pages one fault at a time, which is slow on GB10; positional reads of large pieces from several threads
are fast. The page cache of a piece is dropped after it is read, so loading does not evict the rest of the machine's
files.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from firesteel.json_file import open_regular
from firesteel.model.shards import CURE, CheckpointError

PIECE_BYTES = 16 << 20
Progress = Callable[[int, int], None]  # bytes done, bytes in total


@dataclass(frozen=True, slots=True)
class Stretch:
    """A byte range of `file` from `offset` on, and the contiguous `target` on any device that it fills."""

    file: Path
    offset: int
    target: Tensor


@dataclass(frozen=True, slots=True)
class ReadReport:
    """Bytes read and the time it took."""

    num_bytes: int
    seconds: float

    @property
    def gb_s(self) -> float:
        return self.num_bytes / max(self.seconds, 1e-9) / 1e9


def shift(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Returns the progress callback of one read among several: `before` bytes precede it, all have `total`."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def read_all(stretches: Sequence[Stretch], *, workers: int, progress: Progress | None = None) -> ReadReport:
    """Fills the targets of all stretches; `progress` is called after each piece."""
    start = time.perf_counter()
    total = sum(stretch.target.nbytes for stretch in stretches)
    done, lock = 0, threading.Lock()
    staging = threading.local()

    def read(piece: Stretch) -> None:
        nonlocal done
        _read_piece(files[piece.file], piece, staging)
        with lock:
            done += piece.target.nbytes
            if progress:
                progress(done, total)

    pool = ThreadPoolExecutor(workers)
    files: dict[Path, int] = {}
    try:
        for path in {stretch.file for stretch in stretches}:
            files[path] = _open(path)
        for _ in pool.map(read, _pieces(stretches)):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
        for descriptor in files.values():
            os.close(descriptor)
    return ReadReport(total, time.perf_counter() - start)


def _open(path: Path) -> int:
    try:
        return open_regular(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}; {CURE}") from error


def _pieces(stretches: Sequence[Stretch]) -> Iterator[Stretch]:
    for stretch in stretches:
        flat = stretch.target.view(torch.uint8).view(-1)
        for begin in range(0, flat.numel(), PIECE_BYTES):
            yield Stretch(stretch.file, stretch.offset + begin, flat[begin : begin + PIECE_BYTES])


def _read_piece(descriptor: int, piece: Stretch, staging: threading.local) -> None:
    if piece.target.device.type == "cpu":
        _fill(descriptor, piece, piece.target)
    else:
        if not hasattr(staging, "buffer"):
            staging.buffer = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        buffer = staging.buffer[: piece.target.numel()]
        _fill(descriptor, piece, buffer)
        piece.target.copy_(buffer)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, piece.offset, piece.target.nbytes, os.POSIX_FADV_DONTNEED)


def _fill(descriptor: int, piece: Stretch, host: Tensor) -> None:
    view = memoryview(host.numpy())  # type: ignore[arg-type]
    filled = 0
    while filled < len(view):
        try:
            count = os.preadv(descriptor, [view[filled:]], piece.offset + filled)
        except OSError as error:
            raise CheckpointError(f"cannot read {piece.file}: {error.strerror}: check its disk") from error
        if count == 0:
            raise CheckpointError(f"{piece.file} ended at byte {piece.offset + filled} while it was read")
        filled += count
