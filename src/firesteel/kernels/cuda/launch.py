"""Loads compiled CUDA C++ into the driver and launches it on torch's current stream."""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from firesteel.errors import KernelError
from firesteel.kernels.cuda.arguments import Arguments, pack_arguments
from firesteel.kernels.cuda.binary import CudaEntry
from firesteel.kernels.cuda.geometry import PORTABLE_CLUSTER, Geometry, make_config
from firesteel.kernels.ledger import Launch, note

WHOLE_CARVEOUT = 100  # percent


@dataclass(slots=True)
class CudaFunction:
    """A kernel in the driver, on one device."""

    entry: CudaEntry
    device: torch.device
    handle: Any
    shared_limit_bytes: int = 0  # dynamic shared memory that launches may use so far

    def allow(self, geometry: Geometry) -> None:
        """Raises the function's limits to those of `geometry`; lowers none, as earlier launches may need them."""
        from cuda.bindings.driver import CUfunction_attribute, cuFuncSetAttribute

        if geometry.shared_bytes > self.shared_limit_bytes:
            limit = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call_driver(cuFuncSetAttribute, self.handle, limit, geometry.shared_bytes, of=self.entry.name)
            self.shared_limit_bytes = geometry.shared_bytes
        if geometry.cluster_size > PORTABLE_CLUSTER:
            allowed = CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            call_driver(cuFuncSetAttribute, self.handle, allowed, 1, of=self.entry.name)

    def occupancy(self, geometry: Geometry) -> int:
        """Returns the number of CTAs that an SM holds at once."""
        from cuda.bindings.driver import cuOccupancyMaxActiveBlocksPerMultiprocessor

        self.allow(geometry)
        count: int = call_driver(
            cuOccupancyMaxActiveBlocksPerMultiprocessor,
            self.handle,
            geometry.threads,
            geometry.shared_bytes,
            of=self.entry.name,
        )
        return count


class PreparedLaunch:
    """A kernel with its arguments; each call launches it on torch's current stream, in graph capture too.

    Values and addresses are fixed when it is made; it keeps its tensors alive.
    """

    def __init__(self, function: CudaFunction, geometry: Geometry, args: Sequence[Any], *, tile: str = "") -> None:
        from cuda.bindings.driver import cuLaunchKernelEx

        entry = function.entry
        function.allow(geometry)
        self.args = args
        self._arguments = pack_arguments(entry, args)
        self._config = make_config(geometry)
        self._function, self._launch_kernel = function, cuLaunchKernelEx
        self._launch = Launch(entry.name, tile, entry.binary.hash, entry)
        self._device_index = function.device.index

    def __call__(self) -> None:
        self._config.hStream = torch._C._cuda_getCurrentRawStream(self._device_index)
        (status,) = self._launch_kernel(self._config, self._function.handle, self._arguments.address, 0)
        if status:
            raise driver_error(self._launch_kernel, status, of=self._launch.kernel)
        note(self._launch)


class RepeatedLaunch:
    """A kernel with its geometry; each call launches it with other arguments on torch's current stream.

    It must be given tensors of the device that it was made for, which must be torch's current one.
    """

    def __init__(self, function: CudaFunction, geometry: Geometry, *, tile: str = "") -> None:
        from cuda.bindings.driver import cuLaunchKernelEx

        function.allow(geometry)
        self._arguments: Arguments | None = None
        self._config = make_config(geometry)
        self._function, self._launch_kernel = function, cuLaunchKernelEx
        self._launch = Launch(function.entry.name, tile, function.entry.binary.hash, function.entry)
        self._device_index = function.device.index
        self._lock = threading.Lock()  # the driver reads arguments and stream from memory that calls share

    def __call__(self, args: Sequence[Any]) -> None:
        index = self._device_index
        for arg in args:
            if isinstance(arg, Tensor) and arg.get_device() != index:
                find_launch_device(self._launch.kernel, args)
        if not hasattr(_thread, "has_context"):
            _use_context(self._function.device)
            _thread.has_context = True
        with self._lock:
            arguments = self._arguments
            if arguments is None or not arguments.replace(args):
                arguments = self._arguments = pack_arguments(self._function.entry, args)
            self._config.hStream = torch._C._cuda_getCurrentRawStream(index)
            (status,) = self._launch_kernel(self._config, self._function.handle, arguments.address, 0)
        if status:
            raise driver_error(self._launch_kernel, status, of=self._launch.kernel)
        note(self._launch)


_thread = threading.local()
_loaded: dict[tuple[str, str, int], CudaFunction] = {}


def load_function(entry: CudaEntry, device: torch.device) -> CudaFunction:
    """Loads the kernel into the device, once per process; it stays loaded."""
    _use_context(device)
    key = (entry.binary.hash, entry.name, device.index)
    if key not in _loaded:
        _loaded[key] = _load(entry, device)
    return _loaded[key]


def _load(entry: CudaEntry, device: torch.device) -> CudaFunction:
    from cuda.bindings.driver import cuFuncLoad, cuModuleGetFunction, cuModuleLoadData

    if torch.cuda.is_current_stream_capturing():
        raise KernelError(f"{entry.name} must be prepared once before a graph is captured")
    module = call_driver(cuModuleLoadData, entry.binary.cubin, of=entry.name)
    handle = call_driver(cuModuleGetFunction, module, entry.name.encode(), of=entry.name)
    call_driver(cuFuncLoad, handle, of=entry.name)  # now: a first launch in graph capture must not load it
    _prefer_shared_memory(handle, of=entry.name)
    return CudaFunction(entry, device, handle)


def _prefer_shared_memory(handle: Any, *, of: str) -> None:
    """Asks for the largest shared-memory carveout.

    An SM must be empty before its carveout can change, so consecutive kernels ask for the same one.
    """
    from cuda.bindings.driver import CUfunction_attribute, cuFuncSetAttribute

    share = CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    call_driver(cuFuncSetAttribute, handle, share, WHOLE_CARVEOUT, of=of)


def _use_context(device: torch.device) -> None:
    """Makes torch's context current, which a thread that has not used the GPU yet lacks."""
    from cuda.bindings.driver import cuCtxGetCurrent, cuCtxSetCurrent, cuDevicePrimaryCtxRetain

    if not int(call_driver(cuCtxGetCurrent)):
        call_driver(cuCtxSetCurrent, call_driver(cuDevicePrimaryCtxRetain, device.index))


def find_launch_device(name: str, args: Sequence[Any]) -> torch.device:
    """Returns the device of the tensors, which must be torch's current device."""
    devices = {arg.device for arg in args if isinstance(arg, Tensor)}
    elsewhere = [device for device in devices if device.type != "cuda"]
    if elsewhere or not torch.cuda.is_available():
        place = f"its arguments are on {elsewhere[0]}" if elsewhere else "torch sees none"
        raise KernelError(f"{name} runs on an NVIDIA GPU; {place}")
    current = torch.device("cuda", torch.cuda.current_device())
    if devices - {current}:
        raise KernelError(
            f"{name} runs on {current}, torch's current device; its arguments are on "
            f"{', '.join(sorted(map(str, devices)))}: call torch.cuda.set_device, or move them"
        )
    return current


def call_driver(function: Any, *args: Any, of: str = "") -> Any:
    """Returns the result of a driver call; an error names the call and `of`, the kernel that it was for."""
    status, *results = function(*args)
    if status:
        raise driver_error(function, status, of=of)
    return results[0] if results else None


def driver_error(function: Any, status: Any, *, of: str) -> RuntimeError:
    from cuda.bindings.driver import cuGetErrorString

    _, text = cuGetErrorString(status)
    why = text.decode() if text else "unknown to the driver"
    return RuntimeError(f"{of}: " * bool(of) + f"{function.__name__}: {status.name}, {why}")
