"""FlashInfer's paged attention with sinks: when it can run, and how lengths and pages are given to it.

Its kernels are compiled with nvcc at first use, minutes for each of four variants (two backends, with and without a
window), and kept in its cache folder. It cuts the work on the host, so a call waits for the lengths and cannot be
captured in a CUDA graph.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import functools
import importlib
import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from firesteel.device import DeviceSpec
from firesteel.errors import KernelError
from firesteel.kernels.ahead import tell_built
from firesteel.kernels.ledger import Launch, note
from firesteel.kernels.libraries.package import find_flashinfer, list_ahead
from firesteel.kernels.op.op import Needs

CURE = "install firesteel[flashinfer]"
WORKSPACE_BYTES = 256 << 20
TOOLKIT = Path("/usr/local/cuda/bin/nvcc")  # where FlashInfer looks besides the path
# backend -> oldest compute capability, and the first later one that it does not run on
BACKENDS = {"fa2": ((8, 0), (13, 0)), "fa3": ((9, 0), (10, 0))}


def flashinfer_ready(backend: str) -> Needs:
    """Requires the package, what it imports, a compiler unless it was compiled ahead, and a GPU for the backend."""
    oldest, too_new = BACKENDS[backend]

    def needs(device: DeviceSpec) -> str | None:
        if why := lacks_flashinfer(*(name_module(backend, has_window) for has_window in (False, True))):
            return why
        if device.capability is None or not oldest <= device.capability < too_new:
            last = "" if too_new[0] > 12 else f" and before {too_new[0]}.{too_new[1]}"
            return f"is for compute capability {oldest[0]}.{oldest[1]} on{last}, this is {device.name}"
        return None

    return needs


def lacks_flashinfer(*modules: str) -> str | None:
    """Returns what is missing to run these modules of FlashInfer, or None; imports nothing."""
    package = find_flashinfer()
    if package is None:
        return f"needs the package flashinfer, which is not installed: {CURE}"
    if importlib.util.find_spec("tvm_ffi") is None:
        return f"needs the package apache-tvm-ffi beside flashinfer, which is not installed: {CURE}"
    if all(name in list_ahead(package) for name in modules):
        return None
    if shutil.which("nvcc") is None and not TOOLKIT.is_file():
        return "is compiled with nvcc, which is not on the path: install the CUDA toolkit"
    if shutil.which("ninja") is None:
        return "is compiled with ninja, which is not on the path: pip install ninja"
    return None


def name_module(backend: str, has_window: bool) -> str:
    """Returns FlashInfer's name of the compiled module of attention."""
    return f"batch_prefill_attention_sink_bf16_swa_{has_window}_{backend}"


class PageCut(NamedTuple):
    """What FlashInfer plans with, on the host; requests without queries are left out."""

    query_starts: list[int]
    page_starts: list[int]
    last_lens: list[int]  # tokens in the last page of each request
    rows: list[int]  # of the page table, for each page
    columns: list[int]


def cut_pages(starts: Sequence[int], lens: Sequence[int], page_size: int, window: int | None) -> PageCut:
    """Lists the pages that the queries see; those wholly before the window are not read."""
    cut = PageCut([0], [0], [], [], [])
    for request, held in enumerate(lens):
        queries = starts[request + 1] - starts[request]
        if not queries:
            continue
        first = 0 if window is None else max(0, held - queries + 1 - window) // page_size
        end = -(-held // page_size)
        cut.query_starts.append(cut.query_starts[-1] + queries)
        cut.page_starts.append(cut.page_starts[-1] + end - first)
        cut.last_lens.append(held - (end - 1) * page_size)
        cut.rows.extend([request] * (end - first))
        cut.columns.extend(range(first, end))
    return cut


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a compiled variant and its buffers depend on."""

    backend: str
    heads: int
    kv_heads: int
    dim: int
    page_size: int
    window: int | None
    device: torch.device


class AttentionSession:
    """FlashInfer's wrapper for one shape, and its last plan, which is kept while the lengths stay the same."""

    def __init__(self, shape: AttentionShape) -> None:
        library = import_flashinfer()
        self.shape = shape
        self.window_left = -1 if shape.window is None else shape.window - 1
        self.wrapper = library.BatchAttentionWithAttentionSinkWrapper(
            find_workspace(shape.device),
            kv_layout="HND",
            backend=shape.backend,
            q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
            head_dim_qk=shape.dim,
            head_dim_vo=shape.dim,
            window_left=self.window_left,
        )
        self.cut: PageCut | None = None
        self.places: tuple[Tensor, Tensor] | None = None
        self.pages: Tensor | None = None

    def plan(self, cut: PageCut, page_table: Tensor, scale: float) -> None:
        """Plans for new lengths, and takes the pages from the table, which may change though lengths do not."""
        if cut != self.cut or self.places is None or self.pages is None:
            device = self.shape.device
            self.places = torch.tensor(cut.rows, device=device), torch.tensor(cut.columns, device=device)
            self.pages = page_table[self.places].int()
            starts, ends, last = (torch.tensor(numbers, dtype=torch.int32) for numbers in cut[:3])
            self.wrapper.plan(
                starts,
                ends,
                self.pages,
                last,
                self.shape.heads,
                self.shape.kv_heads,
                self.shape.dim,
                self.shape.page_size,
                causal=True,
                window_left=self.window_left,
                sm_scale=scale,
                q_data_type=torch.bfloat16,
                kv_data_type=torch.bfloat16,
            )
            self.cut = cut
        else:
            self.pages.copy_(page_table[self.places])  # the wrapper holds this tensor

    def run(self, q: Tensor, pages: tuple[Tensor, Tensor], sinks: Tensor, scale: float, out: Tensor) -> None:
        self.wrapper.run(q, pages, sinks, scale, out=out)
        name = name_module(self.shape.backend, self.shape.window is not None)
        note_call(import_flashinfer(), name, name)


@functools.cache
def import_flashinfer() -> Any:
    if find_flashinfer() is None:
        raise KernelError(f"the package flashinfer is not installed: {CURE}")
    return importlib.import_module("flashinfer")


_told: set[str] = set()  # modules that FlashInfer has compiled or loaded in this process


def note_call(library: Any, module: str, artefact: str) -> None:
    """Notes a call of FlashInfer in the ledger, and tells which modules it compiled, or read from disk, until now.

    FlashInfer has no hook for this. It registers a module at the first use, and then builds or loads it.
    """
    for name in sorted(library.jit.jit_spec_registry.get_all_specs().keys() - _told):
        _told.add(name)
        tell_built(f"FlashInfer's module {name}")
    note(Launch(module, str(find_flashinfer()), artefact, None, is_library=True))


@functools.cache
def find_session(shape: AttentionShape) -> AttentionSession:
    return AttentionSession(shape)


@functools.cache
def find_workspace(device: torch.device) -> Tensor:
    """Returns the memory for partial results; calls on one stream share it."""
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
