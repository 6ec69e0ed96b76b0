"""Compilation with NVRTC: machine code, errors of programs, and errors if NVRTC is missing."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import firesteel
from firesteel.errors import KernelError
from firesteel.kernels.cuda import compile as cuda_compile
from firesteel.kernels.cuda.compile import Program, compile_program, lacks_nvrtc, nvrtc_version

TEXT = '#include "half.cuh"\nextern "C" __global__ void halve(float* x) { x[threadIdx.x] *= HALF * SIGN; }\n'
PROGRAM = Program(
    name="halve.cu", text=TEXT, headers={"half.cuh": "#define HALF 0.5f\n"}, options=("-DSIGN=-1",), target="sm_90a"
)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a", "sm_121a"])
def test_a_program_becomes_machine_code_of_its_target(target):
    binary = compile_program(replace(PROGRAM, target=target))
    assert binary.cubin.startswith(b"\x7fELF")
    assert f".target {target}" in binary.ptx and list(binary.entries) == ["halve"]
    assert not binary.ptx.endswith("\0")


def test_compile_error_names_line_and_reason():
    with pytest.raises(KernelError) as caught:
        compile_program(replace(PROGRAM, text="\nint wrong = nothing;"))
    message = str(caught.value)
    assert f"halve.cu does not compile for sm_90a with NVRTC {nvrtc_version()}" in message
    assert 'halve.cu(2): error: identifier "nothing" is undefined' in message and "-DSIGN=-1" in message


def test_unknown_option_of_nvrtc_is_named():
    with pytest.raises(KernelError, match="--nonsense"):
        compile_program(replace(PROGRAM, options=("--nonsense",)))


def test_a_header_that_only_lies_in_the_current_folder_is_not_found(tmp_path, monkeypatch):
    """The result of a compilation must not depend on the current folder."""
    (tmp_path / "half.cuh").write_text("#define HALF 0.25f\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KernelError, match=r'could not open source file "half.cuh"'):
        compile_program(replace(PROGRAM, headers={}))
    assert compile_program(PROGRAM) == compile_program(PROGRAM)


def test_unknown_target_of_nvrtc_is_named():
    with pytest.raises(
        KernelError, match=r"does not know sm_999a; it compiles for .*sm_90, .*newer nvidia-cuda-nvrtc"
    ):
        compile_program(replace(PROGRAM, target="sm_999a"))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other.cu"},
        {"text": TEXT + " "},
        {"headers": {"half.cuh": "#define HALF 0.25f\n"}},
        {"headers": {"other.cuh": "#define HALF 0.5f\n"}},
        {"options": ("-DSIGN=1",)},
        {"target": "sm_121a"},
    ],
    ids=str,
)
def test_digest_covers_everything_that_affects_the_machine_code(change):
    assert replace(PROGRAM).digest == PROGRAM.digest != replace(PROGRAM, **change).digest


def test_digest_changes_with_the_compiler(monkeypatch):
    before = PROGRAM.digest
    monkeypatch.setattr(cuda_compile, "nvrtc_version", lambda: "1.0")
    assert PROGRAM.digest != before


BROKEN = {
    "cuda": (
        "",
        "needs cuda.bindings, which cannot be imported: pip install cuda-bindings "
        "(No module named 'cuda.bindings'; 'cuda' is not a package)",
    ),
    "cuda/bindings/nvrtc": (
        "def nvrtcVersion(): raise RuntimeError('no libnvrtc.so.13\\nsearched everywhere')",
        "needs NVRTC, which cannot be loaded: pip install nvidia-cuda-nvrtc (no libnvrtc.so.13)",
    ),
}


@pytest.mark.parametrize("module", BROKEN)
def test_missing_package_is_named_with_its_cure(module, tmp_path):
    content, reason = BROKEN[module]
    path = tmp_path / f"{module}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    for folder in set(path.parents) & {tmp_path / "cuda", tmp_path / "cuda" / "bindings"}:
        (folder / "__init__.py").touch()
    path.write_text(content)
    ask = "from firesteel.kernels.cuda.compile import lacks_nvrtc; print(lacks_nvrtc())"
    places = os.pathsep.join([str(tmp_path), str(Path(firesteel.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": places}
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == reason, done.stderr


def test_without_nvrtc_compiling_is_an_error_with_the_reason(monkeypatch):
    assert lacks_nvrtc() is None
    monkeypatch.setattr(cuda_compile, "lacks_nvrtc", lambda: "needs NVRTC, which is on the moon")
    with pytest.raises(KernelError, match=r"CUDA C\+\+ needs NVRTC, which is on the moon"):
        compile_program(PROGRAM)
