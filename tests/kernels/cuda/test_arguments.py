"""Python values as bytes in memory, as a kernel reads them."""

import ctypes
import struct

import pytest
import torch

from firesteel.errors import KernelError
from firesteel.kernels.cuda.arguments import pack, pack_arguments
from firesteel.kernels.cuda.binary import CudaBinary, CudaEntry, Parameter

TENSOR = torch.zeros(3)
SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}


def parameter(kind):
    return Parameter(kind, SIZES[kind[1:]])


@pytest.mark.parametrize(
    ("kind", "value", "layout"),
    [
        ("u64", 1 << 40, "q"),
        ("u64", -5, "q"),
        ("b64", 7, "q"),
        ("u32", 1 << 31, "I"),
        ("u32", -3, "i"),
        ("s32", -3, "i"),
        ("b32", 9, "i"),
        ("u16", -2, "h"),
        ("u8", 255, "B"),
        ("u8", True, "?"),
        ("f32", 1.5, "f"),
        ("f64", 0.1, "d"),
        ("b32", 2.5, "f"),
        ("b64", 0.1, "d"),
    ],
)
def test_number_has_the_bytes_of_c(kind, value, layout):
    assert bytes(pack(parameter(kind), value)) == struct.pack(f"<{layout}", value)


@pytest.mark.parametrize("kind", ["u64", "b64"])
def test_a_tensor_is_its_address_and_none_a_null_pointer(kind):
    assert pack(parameter(kind), TENSOR).value == TENSOR.data_ptr() != 0
    assert pack(parameter(kind), TENSOR[1:]).value == TENSOR.data_ptr() + 4
    assert pack(parameter(kind), None).value == 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("u32", 1.0),
        ("u64", 1.0),
        ("f32", 1),
        ("f64", 1),
        ("u32", 1 << 32),
        ("u32", -(1 << 31) - 1),
        ("u8", 256),
        ("u32", TENSOR),
        ("f64", TENSOR),
        ("f32", None),
        ("u32", None),
        ("u64", "1"),
        ("u64", b"12345678"),
    ],
)
def test_a_value_of_another_kind_is_refused(kind, value):
    assert pack(parameter(kind), value) is None


def test_a_struct_is_its_bytes_and_nothing_else():
    assert bytes(pack(Parameter("struct", 3), b"a\0c")) == b"a\0c"
    assert pack(Parameter("struct", 3), b"ab") is None
    assert pack(Parameter("struct", 8), 8) is None


def test_a_launch_gets_an_array_of_addresses():
    entry = CudaEntry(CudaBinary(b"", ""), "one", "", (parameter("u64"), parameter("u32"), parameter("f32")))
    packed = pack_arguments(entry, (TENSOR, 3, 1.5))
    pointers = (ctypes.c_void_p * 3).from_address(packed.address)
    assert ctypes.c_uint64.from_address(pointers[0]).value == TENSOR.data_ptr()
    assert ctypes.c_uint32.from_address(pointers[1]).value == 3
    assert ctypes.c_float.from_address(pointers[2]).value == 1.5


def test_wrong_arguments_are_named():
    entry = CudaEntry(CudaBinary(b"", ""), "one", "", (parameter("u64"), parameter("u32")))
    with pytest.raises(KernelError, match="one has 2 parameters, 1 were given"):
        pack_arguments(entry, (TENSOR,))
    with pytest.raises(KernelError, match=r"one: parameter 1 is u32 of 4 bytes, given was float 2.5"):
        pack_arguments(entry, (TENSOR, 2.5))
    with pytest.raises(KernelError, match=r"parameter 1 is u32 of 4 bytes, given was a tensor"):
        pack_arguments(entry, (TENSOR, TENSOR))
