"""Parsing the PTX of a binary: kernels, their parameters and their code."""

import pytest

from firesteel.errors import KernelError
from firesteel.kernels.cuda.binary import CudaBinary, Parameter

PTX = """
.version 9.0
.target sm_90a
.func  (.param .b32 func_retval0) _Z4sidef(
	.param .b32 _Z4sidef_param_0
)
{
	mma.sync.side;
}
.visible .entry first(
	.param .u64 .ptr .align 1 first_param_0,
	.param .align 8 .b8 first_param_1[16],
	.param .f32 first_param_2
)
.maxntid 128, 1, 1
{
	mma.sync.first;
}
	// .globl	second
.weak .entry second()
{
	mma.sync.second;
}
"""


def test_each_kernel_has_its_parameters_and_its_own_code():
    binary = CudaBinary(b"cubin", PTX)
    first, second = binary.entries.values()
    assert (first.name, second.name) == ("first", "second")
    assert first.parameters == (Parameter("u64", 8), Parameter("struct", 16), Parameter("f32", 4))
    assert second.parameters == ()
    assert "mma.sync.first" in first.ptx and "mma.sync.second" not in first.ptx
    assert "mma.sync.second" in second.ptx and "mma.sync.first" not in second.ptx
    assert all("mma.sync.side" in entry.ptx for entry in (first, second))


def test_error_for_a_missing_kernel_lists_the_existing_ones():
    with pytest.raises(KernelError, match=r"no kernel 'third', only first, second; is it declared extern \"C\""):
        CudaBinary(b"cubin", PTX).entry("third")
    with pytest.raises(KernelError, match="only nothing"):
        CudaBinary(b"cubin", "").entry("first")


def test_hash_covers_the_machine_code():
    one, same, other = CudaBinary(b"a", "x"), CudaBinary(b"a", "y"), CudaBinary(b"b", "x")
    assert one.hash == same.hash != other.hash


def test_parameters_of_a_compiled_kernel_are_those_of_its_source(small):
    parameters = small("mixed").build("sm_90a").parameters
    assert [parameter.num_bytes for parameter in parameters] == [8, 16, 8, 8, 2, 1, 8]
    assert [parameter.kind == "struct" for parameter in parameters] == [False, True, *[False] * 5]
