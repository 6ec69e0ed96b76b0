"""Sources in CUDA C++: headers, defines, one compilation per target, and missing files."""

import pytest

from firesteel.errors import KernelError
from firesteel.kernels.cuda import source as cuda_source
from firesteel.kernels.cuda.compile import compile_program
from firesteel.kernels.cuda.source import CudaSource


@pytest.fixture
def compiled(monkeypatch, kernel_cache):
    """The compiled programs, in order."""
    programs = []
    monkeypatch.setattr(
        cuda_source, "compile_program", lambda program: programs.append(program) or compile_program(program)
    )
    return programs


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.{'cu' if name == 'main' else 'cuh'}").write_text(text)
    return folder


MAIN = '#include "outer.cuh"\nextern "C" __global__ void main_kernel(float* x) { *x = VALUE; }\n'


def test_nested_headers_are_included_once(tmp_path):
    folder = write(
        tmp_path,
        main=MAIN + '  #  include "inner.cuh"\n',
        outer='#pragma once\n#include "inner.cuh"\n',
        inner='#pragma once\n#include "outer.cuh"\n#define VALUE 1\n',
        unused="#error\n",
    )
    program = CudaSource("main.cu", folder=folder).program("sm_90a")
    assert list(program.headers) == ["outer.cuh", "inner.cuh"]
    assert list(compile_program(program).entries) == ["main_kernel"]


def test_a_file_or_header_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(KernelError, match=r"a kernel needs .*main\.cu, which does not exist"):
        CudaSource("main.cu", folder=tmp_path).program("sm_90a")
    with pytest.raises(KernelError, match=r"main\.cu needs .*outer\.cuh, which does not exist"):
        CudaSource("main.cu", folder=write(tmp_path, main=MAIN)).program("sm_90a")


def test_defines_are_options_in_order_of_name_before_the_others(tmp_path):
    folder = write(tmp_path, main="")
    defines = {"WARPS": 16, "DEEP": True, "SCALE": 1.5, "TYPE": "float"}
    source = CudaSource("main.cu", defines=defines, options=("--maxrregcount=32",), folder=folder)
    expected = ("-DDEEP=1", "-DSCALE=1.5", "-DTYPE=float", "-DWARPS=16", "--maxrregcount=32")
    assert source.program("sm_90a").options == expected


def test_a_define_needs_a_name(tmp_path):
    with pytest.raises(KernelError, match="'A B' is not a valid name for a define"):
        CudaSource("main.cu", defines={"A B": 1}, folder=write(tmp_path, main="")).program("sm_90a")


def test_source_is_compiled_once_per_target_and_then_read_from_disk(tmp_path, compiled, kernel_cache):
    folder = write(tmp_path, main=MAIN, outer="#define VALUE 1\n")
    source = CudaSource("main.cu", folder=folder)
    first = source.build("sm_90a")
    assert source.build("sm_90a") is first and len(compiled) == 1
    assert CudaSource("main.cu", folder=folder).build("sm_90a") == first and len(compiled) == 1
    source.build("sm_121a")
    assert [program.target for program in compiled] == ["sm_90a", "sm_121a"]
    names = sorted(path.name for path in kernel_cache.folder.iterdir())
    assert names[0].startswith("main-sm_121a-") and names[1].startswith("main-sm_90a-")


def test_changed_header_or_define_is_compiled_again(tmp_path, compiled):
    folder = write(tmp_path, main=MAIN, outer="#define VALUE 1\n")
    before = CudaSource("main.cu", folder=folder).build("sm_90a")
    write(tmp_path, outer="#define VALUE 2\n")
    after = CudaSource("main.cu", folder=folder).build("sm_90a")
    CudaSource("main.cu", defines={"OTHER": 1}, folder=folder).build("sm_90a")
    assert len(compiled) == 3 and before.hash != after.hash


def test_damaged_file_of_the_cache_is_compiled_again(tmp_path, compiled, kernel_cache):
    folder = write(tmp_path, main=MAIN, outer="#define VALUE 1\n")
    first = CudaSource("main.cu", folder=folder).build("sm_90a")
    (kept,) = kernel_cache.folder.iterdir()
    kept.write_bytes(kept.read_bytes()[:500])
    assert CudaSource("main.cu", folder=folder).build("sm_90a").hash == first.hash and len(compiled) == 2


def test_kernel_missing_from_its_source_is_named(small):
    with pytest.raises(KernelError, match=r"no kernel 'stop', only step, turn"):
        small("stop").build("sm_90a")
