"""Finds out what a file is evidence of: a log, a trace, a ledger, a crash bundle or a compiled library."""

from __future__ import annotations

import gzip
import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from firesteel.engine.process.crash import LOG as BUNDLE_LOG
from firesteel.engine.process.crash import REPORT
from firesteel.errors import UserError
from firesteel.lab.trace import GZIP_MAGIC, SQLITE_MAGIC

ELF_MAGIC, FATBIN_MAGIC = b"\x7fELF", b"\x50\xed\x55\xba"
OF_CUDA = 190  # e_machine of a cubin
FATBIN_SECTION = b".nv_fatbin"
HEAD_BYTES = 1 << 16
MAX_JSON_BYTES = 1 << 28
# Of a folder, only files with these endings are looked at.
LIBRARIES = (".so", ".cubin", ".fatbin")
OTHERS = (".log", ".json", ".json.gz", ".sqlite")


class Kind(Enum):
    LOG = "log"
    TRACE = "trace"
    LEDGER = "ledger"
    BUNDLE = "crash bundle"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    path: Path  # of a bundle, its folder
    kind: Kind
    is_named: bool = True  # False: found in a folder that was named


def find_evidence(path: Path) -> Iterator[EvidenceFile]:
    """Yields a file, or what a folder holds; UserError if a named file is none of these."""
    if path.is_dir():
        if (path / REPORT).is_file():
            yield EvidenceFile(path, Kind.BUNDLE)
            return
        yield from _search(path)
    elif not path.is_file():
        raise UserError(f"there is no file or folder {path}")
    elif path.name == REPORT and path.with_name(BUNDLE_LOG).is_file():
        yield EvidenceFile(path.parent, Kind.BUNDLE)
    else:
        kind = find_kind(path)
        if kind is None:
            raise UserError(
                f"{path} is neither a log, a trace (PyTorch's JSON, nsys's SQLite), a ledger, a crash bundle nor a "
                "compiled library (.so, .cubin, .fatbin)"
            )
        yield EvidenceFile(path, kind)


def find_kind(path: Path) -> Kind | None:
    head = read_head(path)
    if head.startswith((ELF_MAGIC, FATBIN_MAGIC)):
        return Kind.LIBRARY
    if head.startswith(SQLITE_MAGIC):
        return Kind.TRACE
    if head.startswith(GZIP_MAGIC):
        try:
            with gzip.open(path) as file:
                head = file.read(HEAD_BYTES)
        except (OSError, EOFError):
            return None
    if b"\0" in head:
        return None
    return _find_json_kind(path, head) if head.lstrip().startswith(b"{") else Kind.LOG


def holds_device_code(path: Path) -> bool:
    """Returns whether a library can hold code of a GPU, without a disassembler."""
    head = read_head(path, 20)
    if head.startswith(FATBIN_MAGIC) or int.from_bytes(head[18:20], "little") == OF_CUDA:
        return True
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(FATBIN_SECTION) >= 0


def read_head(path: Path, count: int = HEAD_BYTES) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def read_json(path: Path) -> Any:
    """Returns None if the file is not JSON, or too large to be a ledger or a report."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            return None
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _find_json_kind(path: Path, head: bytes) -> Kind | None:
    if b'"traceEvents"' in head:
        return Kind.TRACE
    content = read_json(path)
    if isinstance(content, dict) and isinstance(content.get("ran"), list):
        return Kind.LEDGER
    if isinstance(content, dict) and "traceEvents" in content:
        return Kind.TRACE
    # Some servers log an object per line: more than one line is not one object.
    return Kind.LOG if content is None and path.suffix != ".json" else None


def _search(folder: Path) -> Iterator[EvidenceFile]:
    seen: set[Path] = set()
    for path in sorted(folder.rglob("*")):
        if path.name == REPORT and path.with_name(BUNDLE_LOG).is_file():
            yield EvidenceFile(path.parent, Kind.BUNDLE, is_named=False)
        if not path.is_file() or path.with_name(REPORT).is_file() or path.resolve() in seen:
            continue
        is_library = path.suffix in LIBRARIES or ".so." in path.name
        if not is_library and not path.name.endswith(OTHERS):
            continue
        seen.add(path.resolve())
        kind = find_kind(path)
        if kind is not None and (kind is Kind.LIBRARY) == is_library:
            yield EvidenceFile(path, kind, is_named=False)
