"""Unfinished downloads: what is written to them is checked against the size and digest that the hub states."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from firesteel.hub.listing import RemoteFile

PIECE_BYTES = 4 << 20


class Stopped(Exception):
    """Ends a download whose pull has failed elsewhere or was interrupted."""


class Oversized(Exception):
    """Ends a download that sends more than the hub states."""


class SmallFile(io.BytesIO):
    """A file in memory that takes no more than its stated size."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__()
        self._file = file

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._file.num_bytes:
            raise Oversized
        return super().write(data)

    def is_right(self) -> bool:
        digest = self._file.new_hash()
        digest.update(self.getvalue())
        return digest.hexdigest() == self._file.digest


class PartialFile:
    """A file that huggingface_hub writes to, which may hold the beginning of the download already.

    `count` is called with the bytes gained, or lost if negative. Nothing is buffered: what was written survives.
    """

    def __init__(self, path: Path, file: RemoteFile, count: Callable[[int], None], stop: threading.Event) -> None:
        self._path = path
        self._file = file
        self._count = count
        self._stop = stop
        self._stream = path.open("r+b" if path.exists() else "w+b", buffering=0)
        try:
            self._read_beginning()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def _read_beginning(self) -> None:
        """Hashes what the file holds; the position is its end."""
        self._hash = self._file.new_hash()
        self._stream.seek(0)
        while piece := self._stream.read(PIECE_BYTES):
            if self._stop.is_set():
                raise Stopped
            self._hash.update(piece)

    def tell(self) -> int:
        return self._stream.tell()

    def write(self, data: bytes) -> int:
        if self._stop.is_set():
            raise Stopped
        if self.tell() + len(data) > self._file.num_bytes:
            raise Oversized
        remaining = memoryview(data)
        try:
            while remaining:
                written = self._stream.write(remaining) or 0
                self._hash.update(remaining[:written])
                self._count(written)
                remaining = remaining[written:]
        except OSError as error:
            error.filename = str(self._path)  # tells the disk's errors from the network's
            raise
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        """Drops what lies behind the position, if the server begins anew instead of resuming."""
        before = os.fstat(self._stream.fileno()).st_size
        after = self._stream.truncate(size)
        self._read_beginning()
        self._count(after - before)
        return after

    def is_right(self) -> bool:
        """Returns true if the content has the digest that the hub states."""
        return self._hash.hexdigest() == self._file.digest
