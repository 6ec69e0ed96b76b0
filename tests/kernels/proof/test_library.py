"""Machine code in compiled libraries: kernels are found, named and judged."""

import pytest

from firesteel.errors import UserError
from firesteel.kernels.cuda.source import CudaSource
from firesteel.kernels.proof.library import LibraryKernel, find_function, read_library

HALVES = """
extern "C" __global__ void multiply(unsigned *x, float *y) {
    float4 sum = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9},"
                 "{%0,%1,%2,%3};" : "+f"(sum.x), "+f"(sum.y), "+f"(sum.z), "+f"(sum.w)
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]));
    y[threadIdx.x] = sum.x + sum.y + sum.z + sum.w;
}
extern "C" __global__ void copy(unsigned *x, float *y) { y[threadIdx.x] = x[threadIdx.x]; }
"""


@pytest.fixture(scope="module")
def cubin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    (folder / "pair.cu").write_text(HALVES)
    path = folder / "pair.1.sm_90a.cubin"
    path.write_bytes(CudaSource("pair.cu", folder=folder).build("sm_90a").cubin)
    return path


def test_every_kernel_is_judged_by_its_own_code(cubin):
    kernels = {kernel.kernel: kernel for kernel in read_library(cubin)}
    assert {name: kernel.verdict for name, kernel in kernels.items()} == {"multiply": "bf16", "copy": "none"}
    assert sum(kernels["multiply"].sass.values()) == 1 and not kernels["copy"].sass
    assert kernels["copy"].target == "sm_90a" and kernels["copy"].registers > 0 and kernels["copy"].spills == 0


def test_file_without_machine_code_is_an_error(tmp_path):
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(UserError, match=r"text\.so"):
        read_library(tmp_path / "text.so")


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZN7cutlass13device_kernelINS_4gemm6kernelEEEvT_", "device_kernel"),
        ("_Z4gemmILi3EEvPf", "gemm"),
        ("plain_c", "plain_c"),
    ],
)
def test_name_is_that_of_the_function_alone(mangled, name):
    assert find_function(mangled) == name


def test_short_name_has_the_instruction_of_cutlass():
    named = "_ZN7cutlass13device_kernelINS5_4SM904GMMA28MMA_64x128x16_F32BF16BF16_RSEEEvT_"
    kernel = LibraryKernel(library="", kernel=named, target="", verdict="bf16", sass={}, registers=1, spills=0)
    assert kernel.short_name == "device_kernel 64x128x16"
