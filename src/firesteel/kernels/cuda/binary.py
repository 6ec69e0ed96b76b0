"""Compiled CUDA C++: machine code, the PTX it came from and the kernels in it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from firesteel.errors import KernelError

ENTRY = re.compile(r"^\s*(?:\.\w+\s+)*\.entry\s+([\w$]+)\s*\(([^)]*)\)", re.MULTILINE)
FUNCTION = re.compile(r"^\s*(?:\.\w+\s+)*\.(?:entry|func)\b", re.MULTILINE)
PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.([usbf]\d+)[^\[]*(?:\[(\d+)\])?")


@dataclass(frozen=True, slots=True)
class Parameter:
    """`kind` as PTX writes it ("u64", "f32"; newer compilers only "b64", "b32"), or "struct"."""

    kind: str
    num_bytes: int


@dataclass(frozen=True)
class CudaBinary:
    """Machine code of one source for one target; may hold several kernels."""

    cubin: bytes
    ptx: str

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self.cubin).hexdigest()

    @cached_property
    def entries(self) -> dict[str, CudaEntry]:
        """Kernels by name; only `extern "C"` kernels keep the name of the source."""
        starts = [match.start() for match in FUNCTION.finditer(self.ptx)]
        parts = [self.ptx[start:end] for start, end in pairwise([*starts, len(self.ptx)])]
        entries = [(head, part) for part in parts if (head := ENTRY.match(part))]
        shared = "".join(part for part in parts if not ENTRY.match(part))
        return {
            head[1]: CudaEntry(self, head[1], part + shared, _read_parameters(head[2])) for head, part in entries
        }

    def entry(self, name: str) -> CudaEntry:
        if name not in self.entries:
            held = ", ".join(self.entries) or "nothing"
            raise KernelError(f'there is no kernel {name!r}, only {held}; is it declared extern "C" __global__?')
        return self.entries[name]


@dataclass(frozen=True, slots=True, eq=False)
class CudaEntry:
    """One kernel of a binary."""

    binary: CudaBinary
    name: str
    ptx: str  # of this kernel and of functions that kernels may call
    parameters: tuple[Parameter, ...]


def _read_parameters(text: str) -> tuple[Parameter, ...]:
    matches = (PARAMETER.search(line) for line in text.split(","))
    return tuple(
        Parameter("struct", int(match[2])) if match[2] else Parameter(match[1], int(match[1][1:]) // 8)
        for match in matches
        if match
    )
