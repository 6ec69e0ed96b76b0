"""CUDA kernels of ours on a CPU: compiled by g++ with `emulator/` in place of the GPU's instructions, and run.

    monkeypatch.setattr(CudaKernel, "prepare", emulated_prepare)

Every thread is a fiber and runs in a random order, copies come late: see emulator/machine.hpp. For small sizes.
"""

import ctypes
import hashlib
import itertools
import math
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

FOLDER = Path(__file__).with_name("emulator")
OWN = ("instructions.cuh", "machine.hpp", "launch.hpp")
OPTIONS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-fno-strict-aliasing", "-ffp-contract=off", "-w", "-pthread")
PATIENCE_S = 60.0
_seeds = itertools.count(1)


class EmulationError(AssertionError):
    """A kernel hung, or did what a GPU does not allow."""


@cache
def _folder():
    return tempfile.TemporaryDirectory(prefix="firesteel-emulator-")


@cache
def _build(name, text, headers, options):
    """The shared library of a program."""
    files = dict(headers) | {one: (FOLDER / one).read_text(encoding="utf-8") for one in OWN}
    files["main.cpp"] = f'{text}\n#define KERNEL {name}\n#include "launch.hpp"\n'
    key = hashlib.sha256(repr((sorted(files.items()), options)).encode()).hexdigest()[:16]
    folder = Path(_folder().name) / key
    folder.mkdir()
    for file, content in files.items():
        (folder / file).write_text(content, encoding="utf-8")
    command = ["g++", *OPTIONS, "-DDELAYS", *options, "main.cpp", "-o", "kernel.so"]
    made = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8")
    assert made.returncode == 0, made.stderr[:4000]
    library = ctypes.CDLL(str(folder / "kernel.so"))
    library.launch.restype = ctypes.c_char_p
    return library


def _slot(value):
    if value is None or isinstance(value, torch.Tensor):
        return ctypes.c_uint64(0 if value is None else value.data_ptr())
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(value)


def emulated_prepare(kernel, *, grid, args, dependent=False, cluster=(), tile=""):
    """Stands in for CudaKernel.prepare."""
    program = kernel.source.program("sm_90a")
    options = program.options
    library = _build(kernel.name, program.text, tuple(sorted(program.headers.items())), options)
    assert library.num_parameters() == len(args), f"{kernel.name} has {library.num_parameters()} parameters"
    slots = (ctypes.c_uint64 * len(args))()
    for number, value in enumerate(args):
        ctypes.memmove(ctypes.addressof(slots) + 8 * number, ctypes.addressof(_slot(value)), 8)
    sizes = (ctypes.c_uint32 * 3)(*(*grid, 1, 1)[:3])

    def launch():
        why = library.launch(
            sizes, kernel.threads, math.prod(cluster), slots, next(_seeds), ctypes.c_double(PATIENCE_S)
        )
        if why:
            raise EmulationError(f"{kernel.name}: {why.decode()}")

    launch.args = args  # tensors stay alive
    return launch
