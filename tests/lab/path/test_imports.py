"""Where packages and their machine code are loaded from."""

import importlib.metadata
import os
import subprocess
import sys

import psutil
import pytest

from firesteel.lab.path.imports import ImportedPackage, ServerImports, find_imports, find_libraries, judge_imports
from firesteel.lab.path.place import HostPlace


def test_packages_are_found_without_importing_them():
    import firesteel

    imports = find_imports(HostPlace.of([psutil.Process()]), ["firesteel", "torch", "no_such_package"])
    assert imports.packages["firesteel"].file == firesteel.__file__ and imports.packages["no_such_package"] is None
    assert imports.versions["torch"] == importlib.metadata.version("torch") and imports.has_fused_moe is None
    assert (
        f"from {firesteel.__file__}" in imports.in_words()
        and "no_such_package is not installed" in imports.in_words()
    )


def test_loaded_machine_code_of_torch_is_found():
    import torch

    [place] = find_libraries([psutil.Process()])["torch"]
    assert os.path.realpath(torch.__file__).startswith(place)


# Maps a library of its package through the given path, prints a line and waits.
MAPS = """
import mmap, sys
with open(sys.argv[1] + "/burr/core.so", "rb") as file:
    held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("ready", flush=True)
sys.stdin.read()
"""


def test_linked_environment_is_one_place(tmp_path):
    package = tmp_path / "real" / "site-packages" / "burr"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "core.so").write_bytes(b"x" * 4096)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    linked = str(tmp_path / "link" / "site-packages")
    with subprocess.Popen(
        [sys.executable, "-c", MAPS, linked],
        env={**os.environ, "PYTHONPATH": linked},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        server.stdout.readline()
        process = psutil.Process(server.pid)
        imports, libraries = find_imports(HostPlace.of([process]), ["burr"]), find_libraries([process])
        server.stdin.close()
    assert libraries["burr"] == [imports.packages["burr"].folder] == [str(package.resolve())]
    assert judge_imports(imports, libraries, ["burr"]) == []
    assert imports.pythonpath == linked and f"PYTHONPATH={linked}" in imports.in_words()


def test_process_that_is_not_python_imports_nothing():
    with subprocess.Popen(["sleep", "60"]) as process:
        imports = find_imports(HostPlace.of([psutil.Process(process.pid)]), ["torch"])
        process.kill()
    assert imports == ServerImports() and imports.in_words() == "no Python packages"


FUSED = "def has_flashinfer_cutlass_fused_moe():\n    print('a line of its own')\n    return {}\n"


@pytest.mark.parametrize("is_there", [True, False])
def test_vllms_own_test_for_the_fused_moe_of_flashinfer_is_asked(tmp_path, is_there):
    """Without it vLLM silently chooses Marlin on a GB10."""
    for name in ("vllm", "vllm/utils", "flashinfer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "vllm" / "utils" / "flashinfer.py").write_text(FUSED.format(is_there))
    command = [sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.read()"]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        server.stdout.readline()
        imports = find_imports(HostPlace.of([psutil.Process(server.pid)]), ["vllm", "flashinfer"])
        server.stdin.close()
    assert imports.has_fused_moe is is_there
    assert f"FlashInfer's fused MoE is {'there' if is_there else 'MISSING'}" in imports.in_words()


def imported(**places):
    packages = {name: place and ImportedPackage(file=f"{place}/__init__.py") for name, place in places.items()}
    return ServerImports(packages=packages)


def test_faults_are_missing_packages_and_machine_code_from_elsewhere():
    torch = imported(torch="/a/torch")
    assert not judge_imports(torch, {"torch": ["/a/torch"], "numpy": ["/a/numpy"]}, ["torch"])
    [missing] = judge_imports(imported(vllm=None, flashinfer=None), {}, ["vllm"])
    assert "vllm cannot be imported" in missing
    [elsewhere] = judge_imports(torch, {"torch": ["/b/torch"]}, ["torch"])
    assert "imported from /a/torch, but machine code from /b/torch" in elsewhere
    [twice] = judge_imports(imported(), {"flashinfer": ["/a/flashinfer", "/b/flashinfer"]}, [])
    assert "two places" in twice
