"""Reads byte ranges of files into tensors with several threads, without mmap.

mmap loads pages one fault at a time, which is slow on GB10; positional reads of large pieces from several threads
are fast. The page cache of a piece is dropped after it is read, so loading does not evict the rest of the machine's
files. Of a stretch in short runs, everything from the first run to the last is read and the rest discarded: that is
faster than a system call per run.
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

from firesteel.model.shards import CURE, CheckpointError
from firesteel.untrusted.json_file import open_regular

PIECE_BYTES = 16 << 20
LONG_RUN_BYTES = 256 << 10  # runs of at least this length are read one by one
Progress = Callable[[int, int], None]  # bytes done, bytes in total


@dataclass(frozen=True, slots=True)
class Stretch:
    """A byte range of `file` from `offset` on, and the contiguous `target` on any device that it fills.

    Several runs of bytes have equal lengths and begin `pitch_bytes` apart; the target holds them back to back.
    """

    file: Path
    offset: int
    target: Tensor
    num_runs: int = 1
    pitch_bytes: int = 0

    @property
    def run_bytes(self) -> int:
        return self.target.nbytes // self.num_runs

    @property
    def span_bytes(self) -> int:
        """The bytes of the file from the first run's beginning to the last run's end."""
        return (self.num_runs - 1) * self.pitch_bytes + self.run_bytes


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
        flat, run, pitch = stretch.target.view(torch.uint8).view(-1), stretch.run_bytes, stretch.pitch_bytes
        if stretch.num_runs > 1 and run < LONG_RUN_BYTES:
            most = max(1, PIECE_BYTES // pitch)
            for first in range(0, stretch.num_runs, most):
                count = min(most, stretch.num_runs - first)
                target = flat[first * run : (first + count) * run]
                yield Stretch(stretch.file, stretch.offset + first * pitch, target, count, pitch)
            continue
        for number in range(stretch.num_runs):
            for begin in range(0, run, PIECE_BYTES):
                target = flat[number * run : (number + 1) * run][begin : begin + PIECE_BYTES]
                yield Stretch(stretch.file, stretch.offset + number * pitch + begin, target)


def _read_piece(descriptor: int, piece: Stretch, staging: threading.local) -> None:
    if piece.target.device.type == "cpu":
        _fill(descriptor, piece, piece.target, staging)
    else:
        if not hasattr(staging, "buffer"):
            staging.buffer = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        buffer = staging.buffer[: piece.target.numel()]
        _fill(descriptor, piece, buffer, staging)
        piece.target.copy_(buffer)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, piece.offset, piece.span_bytes, os.POSIX_FADV_DONTNEED)


def _fill(descriptor: int, piece: Stretch, host: Tensor, staging: threading.local) -> None:
    """Fills `host` with the runs of the piece."""
    if piece.num_runs == 1:
        _fill_span(descriptor, piece, host)
        return
    if not hasattr(staging, "span"):
        staging.span = torch.empty(PIECE_BYTES, dtype=torch.uint8)
    _fill_span(descriptor, piece, staging.span[: piece.span_bytes])
    runs = staging.span.as_strided((piece.num_runs, piece.run_bytes), (piece.pitch_bytes, 1))
    host.view(piece.num_runs, -1).copy_(runs)


def _fill_span(descriptor: int, piece: Stretch, host: Tensor) -> None:
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
