"""Caches of compiled kernels: counts before and after, and the state word."""

from dataclasses import replace

import pytest

from firesteel.device import find_device
from firesteel.kernels.cuda import cache as cuda_cache
from firesteel.measure.decode import kernel_caches
from firesteel.measure.decode.kernel_caches import CacheUse, CacheWatch, find_caches

CPU = find_device("cpu")


@pytest.mark.parametrize(
    ("held", "compiled", "state"),
    [(5, 0, "warm"), (0, 3, "cold"), (5, 3, "incomplete"), (None, None, "not kept"), (0, 0, "warm")],
)
def test_state_compares_held_and_compiled_kernels(held, compiled, state):
    assert CacheUse(held=held, compiled=compiled).state == state


def test_added_kernels_are_counted(tmp_path):
    """Triton keeps each kernel in its own folder, beside other files."""
    cuda, triton = tmp_path / "kernels", tmp_path / "triton"
    (triton / "AB").mkdir(parents=True)
    (triton / "AB" / "one.cubin").touch()
    watch = CacheWatch({"CUDA": cuda, "Triton": triton, "other": None})
    cuda.mkdir()
    for path in (cuda / "a.cubin", triton / "AB" / "one.ptx", triton / "AB" / "two.cubin"):
        path.touch()
    uses = watch.read()
    assert uses["CUDA"] == CacheUse(held=0, compiled=1) and uses["CUDA"].state == "cold"
    assert uses["Triton"] == CacheUse(held=1, compiled=1) and uses["Triton"].state == "incomplete"
    assert uses["other"].as_dict() == {"state": "not kept", "held": None, "compiled": None}


def test_gpu_has_the_caches_of_cuda_and_triton(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_caches, "_triton_folder", lambda: tmp_path)
    monkeypatch.setattr(kernel_caches.importlib.util, "find_spec", lambda name: name)
    for name in ("_given", "_current"):
        monkeypatch.setattr(cuda_cache, name, None)
    gpu, given = replace(CPU, capability=(9, 0)), str(tmp_path / "given")
    assert find_caches(gpu, given) == {"CUDA": tmp_path / "given", "Triton": tmp_path}
    assert find_caches(CPU, given) == {}
    monkeypatch.setattr(kernel_caches.importlib.util, "find_spec", lambda name: None)
    assert list(find_caches(gpu, given)) == ["CUDA"]


def test_triton_folder_follows_its_own_setting(tmp_path, monkeypatch):
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert triton.knobs.cache.dir == str(tmp_path) and kernel_caches._triton_folder() == tmp_path
