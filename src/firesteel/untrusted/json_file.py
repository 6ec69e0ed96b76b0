"""Reads JSON objects from files that may be damaged or hostile: every fault is one error with a cure.

Only regular files are opened. A symbolic link to one is followed: the Hugging Face cache consists of links. Objects
with a duplicate name, NaN, Infinity, invalid UTF-8 or deep nesting are refused: readers disagree on what they mean.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from firesteel.errors import UserError

DEEPEST = 64  # levels of nesting; a checkpoint's own files have at most 5
LARGEST_BYTES = 8 << 20  # of a file or header; those of gpt-oss-120b have 0.1 MB
SHOWN_CHARACTERS = 100  # of a value in an error
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path) -> int:
    """Returns a descriptor for reading a regular file; raises OSError. Never waits for the other end of a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"it is {KINDS.get(stat.S_IFMT(mode), 'special')}, not a regular file", str(path))


@contextmanager
def reading(path: Path, fault: type[UserError], cure: str) -> Iterator[int]:
    """Opens a regular file for its body; raises `fault`, which ends in `cure`, if it cannot be opened or read."""
    try:
        descriptor = open_regular(path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        raise fault(f"cannot read {path}: {error.strerror}; {cure}") from error


def read_object(path: Path, fault: type[UserError], cure: str, *, largest: int = LARGEST_BYTES) -> dict[str, Any]:
    """Returns the JSON object that a file holds; raises `fault` with `cure` for anything else."""
    with reading(path, fault, cure) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > largest:
            raise fault(f"{path} has {size} bytes, the limit is {largest}; {cure}")
        data = read_bytes(descriptor, size)
    return parse_object(data, str(path), fault, cure)


def read_bytes(descriptor: int, count: int) -> bytes:
    """Reads `count` bytes, or fewer if the file ends."""
    pieces = []
    while count > 0 and (piece := os.read(descriptor, count)):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def parse_object(data: bytes, name: str, fault: type[UserError], cure: str) -> dict[str, Any]:
    """Returns the JSON object in `data`, which errors call `name`."""
    try:
        content = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
        _check_depth(content)
    except RecursionError as error:
        raise fault(f"{name} is nested more than {DEEPEST} levels deep; {cure}") from error
    except ValueError as error:
        raise fault(f"{name} is not valid JSON: {shorten(error)}; {cure}") from error
    if not isinstance(content, dict):
        raise fault(f"{name} holds {type(content).__name__}, not an object; {cure}")
    return content


def shorten(value: object) -> str:
    """Returns the text of a value from a file as an error may show it: one line of bounded length."""
    text = value if isinstance(value, str) else str(value) if isinstance(value, Exception) else _represent(value)
    text = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text[:1000])
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _represent(value: object) -> str:
    """Returns repr(value); of integers too long for it, the number of bits."""
    try:
        return repr(value)
    except ValueError:
        return f"an integer of {value.bit_length()} bits" if isinstance(value, int) else type(value).__name__


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = set()
        for name, _ in pairs:
            if name in names:
                raise ValueError(f"the name {shorten(name)} occurs twice in one object")
            names.add(name)
    return content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check_depth(content: Any) -> None:
    level = [content] if isinstance(content, dict | list) else []
    for _ in range(DEEPEST):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
    if level:
        raise RecursionError
