"""CUDA C++ sources: files of `csrc` with their defines, and the kernels in them.

    source = CudaSource("decode_linear.cu", defines={"WARPS": 16})
    kernel = source.kernel("linear_mxfp4", threads=512, shared_bytes=84 * 1024)
    launch = kernel.prepare(grid=(132, 1, 1), args=(x, w, y, 3, 1.5), dependent=True)
    launch()

Make a source once, at import: nothing is read or compiled before the first `build` or `prepare`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from firesteel.errors import KernelError
from firesteel.kernels.ahead import tell_built
from firesteel.kernels.cuda.binary import CudaBinary, CudaEntry
from firesteel.kernels.cuda.cache import current_cache
from firesteel.kernels.cuda.compile import Program, compile_program
from firesteel.kernels.cuda.geometry import Geometry
from firesteel.kernels.cuda.launch import (
    CudaFunction,
    PreparedLaunch,
    RepeatedLaunch,
    find_launch_device,
    load_function,
)
from firesteel.kernels.target import find_target

CSRC = Path(__file__).parents[1] / "csrc"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CudaSource:
    """A .cu file. It may include files beside it, in quotes; no folder of CUDA headers is searched."""

    name: str
    defines: Mapping[str, int | float | str] = field(default_factory=dict)
    options: tuple[str, ...] = ()  # of NVRTC, as "--maxrregcount=96"
    folder: Path = CSRC
    _built: dict[str, CudaBinary] = field(default_factory=dict, init=False, repr=False, compare=False)

    def kernel(self, name: str, *, threads: int, shared_bytes: int = 0) -> CudaKernel:
        """Returns a kernel of the source; `shared_bytes` is its dynamic shared memory."""
        return CudaKernel(self, name, threads, shared_bytes)

    def build(self, target: str) -> CudaBinary:
        """Compiles for the target, once per process, or reads the binary from disk."""
        if target not in self._built:
            program = self.program(target)
            key = f"{Path(self.name).stem}-{target}-{program.digest}"
            self._built[target] = current_cache().get(key, lambda: compile_program(program))
            tell_built(self.name)
        return self._built[target]

    def program(self, target: str) -> Program:
        text = self._read(self.name, needed_by="a kernel")
        headers: dict[str, str] = {}
        self._gather(self.name, text, headers)
        defines = tuple(_define(name, value) for name, value in sorted(self.defines.items()))
        return Program(name=self.name, text=text, headers=headers, options=(*defines, *self.options), target=target)

    def _gather(self, name: str, text: str, headers: dict[str, str]) -> None:
        for included in INCLUDE.findall(text):
            if included not in headers:
                headers[included] = self._read(included, needed_by=name)
                self._gather(included, headers[included], headers)

    def _read(self, name: str, *, needed_by: str) -> str:
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise KernelError(f"{needed_by} needs {self.folder / name}, which does not exist") from error


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A kernel of a source, with what its launches have in common."""

    source: CudaSource
    name: str
    threads: int
    shared_bytes: int  # dynamic
    _launches: dict[tuple[Any, ...], RepeatedLaunch] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def build(self, target: str) -> CudaEntry:
        return self.source.build(target).entry(self.name)

    def prepare(
        self,
        *,
        grid: tuple[int, ...],
        args: tuple[Any, ...],
        dependent: bool = False,
        cluster: tuple[int, ...] = (),
        tile: object = "",
    ) -> PreparedLaunch:
        """Returns a launch that may be called many times, each time on torch's current stream.

        Arguments are tensors (None is a null pointer), ints, floats and bytes (structs); their values and addresses
        are taken now. `dependent` lets the kernel start before the one ahead of it in the stream has ended
        (programmatic dependent launch): it must wait itself, by griddepcontrol.wait. `tile` is shown in the ledger.
        """
        device = find_launch_device(self.name, args)
        geometry = Geometry(grid, self.threads, self.shared_bytes, dependent, cluster)
        return PreparedLaunch(self._load(geometry, device), geometry, args, tile=str(tile))

    def launch(
        self,
        *,
        grid: tuple[int, ...],
        args: tuple[Any, ...],
        dependent: bool = False,
        cluster: tuple[int, ...] = (),
        tile: object = "",
    ) -> None:
        """Launches once, as `prepare` would; keeps what launches of the same geometry share."""
        key = (torch.cuda.current_device(), grid, dependent, cluster, tile)
        launch = self._launches.get(key)
        if launch is None:
            device = find_launch_device(self.name, args)
            geometry = Geometry(grid, self.threads, self.shared_bytes, dependent, cluster)
            launch = RepeatedLaunch(self._load(geometry, device), geometry, tile=str(tile))
            self._launches[key] = launch
        launch(args)

    def occupancy(self) -> int:
        """Returns the number of CTAs that an SM of torch's current device holds at once."""
        geometry = Geometry((1,), self.threads, self.shared_bytes)
        return self._load(geometry, find_launch_device(self.name, ())).occupancy(geometry)

    def _load(self, geometry: Geometry, device: torch.device) -> CudaFunction:
        target = find_target(torch.cuda.get_device_capability(device))
        geometry.check(self.name, target)
        return load_function(self.build(target), device)


def _define(name: str, value: int | float | str) -> str:
    """Returns NVRTC's option that defines a macro; True is 1."""
    if not name.isidentifier():
        raise KernelError(f"{name!r} is not a valid name for a define")
    return f"-D{name}={int(value) if isinstance(value, bool) else value}"
