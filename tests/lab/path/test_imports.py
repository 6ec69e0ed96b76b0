"""Where packages and their machine code are loaded from."""

import os
import subprocess
import sys

import psutil

from firesteel.lab.path.imports import find_libraries, find_packages, judge_places


def test_packages_are_found_without_importing_them():
    import firesteel

    packages = find_packages(psutil.Process(), ["firesteel", "no_such_package"])
    assert packages["firesteel"] + "/__init__.py" == firesteel.__file__ and packages["no_such_package"] is None


def test_loaded_machine_code_of_torch_is_found():
    import torch

    [place] = find_libraries([psutil.Process()])["torch"]
    assert torch.__file__.startswith(place)


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
        packages, libraries = find_packages(process, ["burr"]), find_libraries([process])
        server.stdin.close()
    assert libraries["burr"] == [packages["burr"]] == [str(package.resolve())]
    assert judge_places(packages, libraries) == []


def test_faults_are_missing_packages_and_machine_code_from_elsewhere():
    assert not judge_places({"torch": "/a/torch"}, {"torch": ["/a/torch"], "numpy": ["/a/numpy"]})
    [missing] = judge_places({"vllm": None}, {})
    assert "vllm cannot be imported" in missing
    [elsewhere] = judge_places({"torch": "/a/torch"}, {"torch": ["/b/torch"]})
    assert "imported from /a/torch, but machine code from /b/torch" in elsewhere
    [twice] = judge_places({}, {"flashinfer": ["/a/flashinfer", "/b/flashinfer"]})
    assert "two places" in twice
