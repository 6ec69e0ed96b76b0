"""Emulator of CUDA kernels on a CPU: g++ compiles them with `emulator/` in place of the GPU's instructions.

    monkeypatch.setattr(CudaKernel, "prepare", emulated_prepare)
    monkeypatch.setattr(CudaKernel, "launch", emulated_launch)

Threads are fibers that run in random order, and copies complete late: see emulator/machine.hpp. Meant for small
sizes.
"""

import ctypes
import fcntl
import hashlib
import itertools
import math
import shutil
import struct
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from firesteel.kernels.proof.verify import POISON

FOLDER = Path(__file__).with_name("emulator")
OWN = tuple(sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".hpp", ".cuh")))
OPTIONS = (
    "-std=c++20",
    "-O1",
    "-fPIC",
    "-shared",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-w",
    "-pthread",
    "-fno-gnu-unique",  # otherwise libraries share the variables of the first one loaded
)
PATIENCE_S = 60.0
_seeds = itertools.count(1)
_late = []
_loaded = {}


class EmulationError(AssertionError):
    """A kernel hung, or did something that a GPU does not allow."""


class _Area(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("num_bytes", ctypes.c_uint64), ("argument", ctypes.c_uint32))


class _Late(ctypes.Structure):
    _fields_ = (("to", ctypes.c_void_p), ("source", ctypes.c_void_p), ("num_bytes", ctypes.c_uint64))


@contextmanager
def coming_late(*tensors):
    """Treats the tensors as outputs of the prior grid, which ends at a random moment of each launch inside."""
    assert all(tensor.is_contiguous() for tensor in tensors)
    _late.extend(tensors)
    try:
        yield
    finally:
        _late.clear()


@cache
def _own_folder():
    return tempfile.TemporaryDirectory(prefix="firesteel-emulator-")


class Builds:
    """The folder of compiled libraries; processes may share it."""

    folder = None  # None: a temporary folder of this process

    @classmethod
    def find(cls):
        return cls.folder or Path(_own_folder().name)


@cache
def _build(name, text, headers, options):
    """Returns the path of a kernel's shared library, compiling it first if needed."""
    files = dict(headers) | {header: (FOLDER / header).read_text(encoding="utf-8") for header in OWN}
    files["main.cpp"] = f'{text}\n#define KERNEL {name}\n#include "launch.hpp"\n'
    key = hashlib.sha256(repr((sorted(files.items()), options)).encode()).hexdigest()[:16]
    folder = Builds.find() / key
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "kernel.so").exists():
            _compile(folder, files, options)
    return folder / "kernel.so"


def _load(path):
    """Returns the loaded library. Its variables persist between launches, as a module's do; an error reloads it."""
    if path not in _loaded:
        with tempfile.NamedTemporaryFile(suffix=".so") as copy:  # a process loads a file only once
            shutil.copyfile(path, copy.name)
            _loaded[path] = ctypes.CDLL(copy.name)
        _loaded[path].launch.restype = ctypes.c_char_p
    return _loaded[path]


def _compile(folder, files, options):
    for file, content in files.items():
        (folder / file).write_text(content, encoding="utf-8")
    command = ["g++", *OPTIONS, "-DDELAYS", *options, "main.cpp", "-o", "made.so"]
    made = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8")
    assert made.returncode == 0, made.stderr[:4000]
    (folder / "made.so").rename(folder / "kernel.so")


def _bits(value):
    if value is None or isinstance(value, torch.Tensor):
        return 0 if value is None else value.data_ptr()
    return struct.unpack("=Q", struct.pack("=d", value))[0] if isinstance(value, float) else value % (1 << 64)


def pack_slots(args):
    """Returns the arguments as an array of 8 bytes each, as launch.hpp reads them."""
    return (ctypes.c_uint64 * len(args))(*map(_bits, args))


def find_areas(args):
    """Returns the memory of tensors among the arguments, joined where it overlaps, and the area of each or -1."""
    areas, area_of = [], [-1] * len(args)
    tensors = [(arg, number) for number, arg in enumerate(args) if torch.is_tensor(arg) and arg.numel()]
    for begin, num_bytes, number in sorted((arg.data_ptr(), _count_bytes(arg), number) for arg, number in tensors):
        end = areas[-1].begin + areas[-1].num_bytes if areas else 0
        if begin < end:
            areas[-1].num_bytes += max(0, begin + num_bytes - end)
        else:
            areas.append(_Area(begin, num_bytes, number))
        area_of[number] = len(areas) - 1
    return (_Area * len(areas))(*areas), (ctypes.c_int32 * len(args))(*area_of)


def _count_bytes(tensor):
    """Returns the bytes from the tensor's first value to its last one."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.itemsize * (1 + sum((size - 1) * stride for size, stride in steps))


def _poison(tensors):
    """Fills late inputs with NaN bits; returns their real contents and the list that the library copies from."""
    kept = [tensor.clone() for tensor in tensors]
    for tensor in tensors:
        tensor.view(torch.uint8).fill_(POISON)
    pairs = zip(tensors, kept, strict=True)
    return kept, (_Late * len(kept))(*(_Late(to.data_ptr(), source.data_ptr(), to.nbytes) for to, source in pairs))


def _find(kernel):
    program = kernel.source.program("sm_90a")
    return _build(kernel.name, program.text, tuple(sorted(program.headers.items())), program.options)


def find_variable(kernel, name, kind):
    """Returns a variable of the kernel's module, in place."""
    return kind.in_dll(_load(_find(kernel)), name)


def emulated_prepare(kernel, *, grid, args, dependent=False, cluster=(), tile=""):
    """Replaces CudaKernel.prepare."""
    path = _find(kernel)
    library = _load(path)
    assert library.num_parameters() == len(args), f"{kernel.name} has {library.num_parameters()} parameters"
    slots, (areas, area_of) = pack_slots(args), find_areas(args)
    sizes = (ctypes.c_uint32 * 3)(*(*grid, 1, 1)[:3])

    def launch():
        kept, late = _poison(list(_late) if dependent else [])
        patience = ctypes.c_double(PATIENCE_S)
        given = (sizes, kernel.threads, math.prod(cluster), slots, area_of, areas, len(areas))
        why = library.launch(*given, next(_seeds), patience, late, len(kept))
        if why:
            _loaded.pop(path, None)
            raise EmulationError(f"{kernel.name}: {why.decode()}")

    launch.args = args  # keeps the tensors alive
    return launch


def emulated_launch(kernel, **options):
    """Stands in for CudaKernel.launch."""
    emulated_prepare(kernel, **options)()
