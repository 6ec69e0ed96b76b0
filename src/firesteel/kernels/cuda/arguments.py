"""Converts Python values to the parameters of a CUDA kernel, as its PTX declares them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from firesteel.errors import KernelError
from firesteel.kernels.cuda.binary import CudaEntry, Parameter

INTEGERS = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}
FLOATS = {4: ctypes.c_float, 8: ctypes.c_double}
WORDS = (ctypes.c_uint32, ctypes.c_uint64)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Values in memory and an array of their addresses, as the driver's launch takes them."""

    values: tuple[Any, ...]
    pointers: ctypes.Array[ctypes.c_void_p]
    types: tuple[type, ...]  # of the packed values

    @property
    def address(self) -> int:
        return ctypes.addressof(self.pointers)

    def replace(self, args: Sequence[Any]) -> bool:
        """Puts other values of the same types in place of those held; returns whether that is possible."""
        if len(args) != len(self.types):
            return False
        for cell, known, value in zip(self.values, self.types, args, strict=True):
            kind = type(value)
            if kind is not known:
                return False
            if known is Tensor:
                cell.value = value.data_ptr()
            elif known is float or (known is int and type(cell) in WORDS and 0 <= value < 1 << 31):
                cell.value = value
            elif value is not None:
                return False
        return True


def pack_arguments(entry: CudaEntry, args: Sequence[Any]) -> Arguments:
    if len(args) != len(entry.parameters):
        raise KernelError(f"{entry.name} has {len(entry.parameters)} parameters, {len(args)} were given")
    values = []
    for number, (parameter, value) in enumerate(zip(entry.parameters, args, strict=True)):
        packed = pack(parameter, value)
        if packed is None:
            wanted = f"{parameter.kind} of {parameter.num_bytes} bytes"
            raise KernelError(f"{entry.name}: parameter {number} is {wanted}, given was {_in_words(value)}")
        values.append(packed)
    pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    return Arguments(tuple(values), pointers, tuple(map(type, args)))


def pack(parameter: Parameter, value: Any) -> Any:
    """Returns the value as a ctypes object, or None if it is of another kind or does not fit.

    An int is not accepted for a float: newer compilers write "b32" for both.
    """
    size, letter = parameter.num_bytes, parameter.kind[0]
    if parameter.kind == "struct":
        is_whole = isinstance(value, bytes) and len(value) == size
        return ctypes.create_string_buffer(value, size) if is_whole else None
    if isinstance(value, float):
        return FLOATS[size](value) if letter in "fb" and size in FLOATS else None
    if letter == "f":
        return None
    if value is None or isinstance(value, Tensor):
        return ctypes.c_uint64(0 if value is None else value.data_ptr()) if size == 8 else None
    fits = isinstance(value, int) and -(1 << (8 * size - 1)) <= value < 1 << 8 * size
    return INTEGERS[size](value) if fits else None


def _in_words(value: Any) -> str:
    if isinstance(value, bytes | Tensor):
        return f"{len(value)} bytes" if isinstance(value, bytes) else "a tensor"
    return f"{type(value).__name__} {value}"
