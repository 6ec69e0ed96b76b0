"""The expert MLP by triton_kernels, Triton's library of matmuls with gathered and scattered rows (`matmul_ogs`).

vLLM runs gpt-oss on Hopper with it. Up to Triton 3.5 the library takes MXFP4 weights in HopperMXValueLayout: groups
that a thread of an MMA owns are together, and bits are interleaved so that four values widen to bf16 at once. Later
versions have another interface and are refused.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from firesteel.device import DeviceSpec
from firesteel.errors import KernelError
from firesteel.kernels.ledger import Launch, note
from firesteel.kernels.libraries.package import LibraryPackage, find_triton_kernels

CURE = "install firesteel[triton-kernels], or vLLM, whose wheel brings it"
MODULES = ("matmul_ogs.py", "routing.py")  # of the interface that is used here; later versions lack routing.py
WORD_BITS = 32
MOST_COMPILED = 4096  # kernels looked up by their handles


def lacks_triton_kernels(device: DeviceSpec) -> str | None:
    """Returns why the library cannot run on this device, or None; imports nothing."""
    found = find_triton_kernels()
    if found is None:
        return f"needs the package triton_kernels, which is not installed: {CURE}"
    missing = [name for name in MODULES if not (found.folder / name).is_file()]
    if missing:
        return (
            f"needs triton_kernels as of Triton 3.5, but {found} has no {missing[0]} (the index has another "
            f"project of the same name): {CURE}"
        )
    if importlib.util.find_spec("triton") is None:
        return "needs Triton, which is not installed"
    if device.capability is None or device.capability[0] != 9:
        return f"holds the experts in an order for SM90 (Hopper), this is {device.name}"
    return None


@functools.cache
def import_library() -> SimpleNamespace:
    """Imports the parts that are used; the copy in vLLM becomes importable by its own name, as vLLM does it."""
    package = find_triton_kernels()
    if package is None:
        raise KernelError(f"the package triton_kernels is not installed: {CURE}")
    _import_from(package)
    matmul, routing, swiglu, tensor, numerics, layout, flags = (
        importlib.import_module(f"triton_kernels.{name}")
        for name in (
            "matmul_ogs",
            "routing",
            "swiglu",
            "tensor",
            "numerics",
            "tensor_details.layout",
            "matmul_ogs_details.opt_flags",
        )
    )
    flags.update_opt_flags_constraints({"split_k": 1})  # as vLLM sets it on Hopper, for the process
    return SimpleNamespace(
        package=package,
        matmul=matmul,
        routing=routing,
        swiglu=swiglu,
        tensor=tensor,
        numerics=numerics,
        layout=layout,
    )


def _import_from(package: LibraryPackage) -> None:
    if "triton_kernels" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        "triton_kernels", package.folder / "__init__.py", submodule_search_locations=[str(package.folder)]
    )
    if spec is None or spec.loader is None:
        raise KernelError(f"{package} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules["triton_kernels"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["triton_kernels"]  # a second try must not find a half-made package
        raise


def pack_bits(ids: Tensor, num_experts: int) -> Tensor:
    """Returns [T, E/32] int32: bit e of a row is set if expert e is among the row's ids; negative ids set none."""
    words = -(-num_experts // WORD_BITS)
    bits = torch.zeros(ids.shape[0], words, dtype=torch.int32, device=ids.device)
    chosen = ids.clamp(min=0)
    ones = (ids >= 0).to(torch.int32) << (chosen % WORD_BITS).to(torch.int32)
    return bits.scatter_add_(1, chosen // WORD_BITS, ones)  # ids of a token differ, so that no bit is added twice


def route(ids: Tensor, weights: Tensor, num_experts: int) -> tuple[Any, Any, Any]:
    """Sorts pairs of token and expert by expert; returns the library's routing, gather and scatter indices."""
    library = import_library()
    packed = pack_bits(ids, num_experts).view(torch.uint32)
    rows, words = packed.shape
    mask = library.tensor.Bitmatrix(packed, shape=[rows, words * WORD_BITS], shape_max=[rows, None])
    pairs = ids.to(torch.int16), weights
    routed: tuple[Any, Any, Any] = library.routing.routing_from_bitmatrix(
        mask, pairs[1], pairs[0], num_experts, ids.shape[1]
    )
    return routed


@contextmanager
def noting_launches() -> Iterator[None]:
    """Notes what the library launches in the ledger, with its version and place instead of a tile."""
    from triton import knobs

    library = str(import_library().package)

    def record(metadata: Any) -> None:
        name, function = str(metadata.data["name"]), metadata.data["function"]
        compiled = _find_compiled(function)
        artefact = f"{name} {function}" if compiled is None else compiled.hash
        note(Launch(name, library, artefact, compiled))

    chain = knobs.runtime.launch_enter_hook
    chain.add(record)
    try:
        yield
    finally:
        chain.remove(record)


@functools.lru_cache(MOST_COMPILED)
def _find_compiled(function: int) -> Any:
    """Returns the kernel that Triton compiled and loaded under this handle."""
    names = [name for name in sys.modules if name.startswith(("triton_kernels", "matmul_ogs_"))]
    for name in names:
        for value in list(vars(sys.modules[name]).values()):
            for cache in list(getattr(value, "device_caches", {}).values()):
                for compiled in list(cache[0].values()):
                    if getattr(compiled, "function", None) == function:
                        return compiled
    return None
