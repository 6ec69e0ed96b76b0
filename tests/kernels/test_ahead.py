"""Kernels compiled ahead of their launch, several at a time, and those compiled late."""

import threading

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime import driver

from firesteel.kernels import ahead as module
from firesteel.kernels.ahead import compile_ahead, current_ahead, listen, tell_built
from firesteel.kernels.cuda.source import CudaSource
from firesteel.kernels.ledger import Ledger, Ran
from firesteel.kernels.stream import build as stream_build
from firesteel.kernels.tiles import launch
from firesteel.kernels.tiles.launch import launch_kernel
from firesteel.kernels.tiles.tuned import launch_key, using_options
from tests.kernels.tiles.test_launch import SilentDriver

X = torch.zeros(64)


@triton.jit
def scale_kernel(x, factor, SIZE: tl.constexpr):
    places = tl.arange(0, SIZE)
    tl.store(x + places, tl.load(x + places) * factor)


@triton.jit
def broken_kernel(x, SIZE: tl.constexpr):
    tl.static_assert(SIZE == 32, "only a few")
    tl.store(x, 0.0)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Makes Triton assume a GPU; nothing is compiled or on disk."""
    silent, before, hook = SilentDriver(), driver._active, knobs.runtime.jit_post_compile_hook
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # or Triton 3.9 warns
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(launch, "_plans", {})
    monkeypatch.setattr(module, "_listeners", [])
    for kernel in (scale_kernel, broken_kernel):
        kernel.device_caches.clear()
    driver.set_active(silent)
    yield silent
    driver._active = before
    knobs.runtime.jit_post_compile_hook = hook
    for kernel in (scale_kernel, broken_kernel):
        kernel.device_caches.clear()


@pytest.fixture
def built(gpu):
    """Receives the names of the kernels that are built."""
    names = []
    listen(names.append)
    return names


def scale(x=X, size=64, **options):
    launch_kernel(scale_kernel, (1,), x, 0.5, SIZE=size, **options)


def test_nothing_is_launched_and_kernels_compiled_ahead_are_not_compiled_again(gpu, built):
    ledger, told = Ledger(), []
    with compile_ahead(workers=2) as ahead:
        for size in (16, 32, 16, 32, 16):
            ledger.run(Ran("op", "triton"), scale, size=size)
        assert len(ahead) == 2
        ahead.wait(lambda *progress: told.append(progress))
    assert told == [(1, 2), (2, 2)] and gpu.launches == [] and current_ahead() is None
    assert not any(entry.launches for entry in ledger.entries.values())
    assert built == ["scale_kernel"] * 2
    for size in (16, 32):
        scale(size=size)
    assert len(gpu.launches) == 2 and built == ["scale_kernel"] * 2


def test_kernel_compiled_ahead_is_the_one_that_a_launch_uses(gpu, built):
    """Pointer alignment and tuned options are the same."""
    whole = torch.zeros(65)
    with using_options({launch_key("scale_kernel", {"SIZE": 64}): {"num_warps": 8}}):
        with compile_ahead(workers=1):
            scale()
            scale(whole[1:])
        assert len(built) == 2
        scale(torch.zeros(64))
        scale(whole[1:])
        assert len(built) == 2
    scale()
    assert len(built) == 3, "without the options it is another"


def test_compile_error_is_raised_by_the_launch(gpu):
    with compile_ahead(workers=1) as ahead:
        launch_kernel(broken_kernel, (1,), X, SIZE=16)
        ahead.wait()
    with pytest.raises(triton.CompilationError, match="only a few"):
        launch_kernel(broken_kernel, (1,), X, SIZE=16)


def test_listener_receives_compiled_and_loaded_kernels_until_it_ends(gpu):
    names = []
    end = listen(names.append)
    scale()
    assert names == ["scale_kernel"]
    scale()
    assert names == ["scale_kernel"], "once"
    scale_kernel.device_caches.clear()
    launch._plans.clear()
    scale()
    assert names == ["scale_kernel"] * 2, "from disk"
    end()
    scale(size=16)
    assert len(names) == 2


def test_listener_receives_kernels_that_a_library_launches_by_itself(gpu, built):
    scale_kernel[(1,)](X, 0.5, SIZE=64)
    assert built == ["scale_kernel"]
    scale_kernel[(1,)](X, 0.5, SIZE=64)
    assert len(built) == 1 and len(gpu.launches) == 2


def test_earlier_hook_is_called_too(gpu):
    seen = []
    knobs.runtime.jit_post_compile_hook = lambda **facts: seen.append(facts["fn"].name)
    names = []
    for _ in range(2):
        listen(names.append)
    scale()
    assert names == ["scale_kernel"] * 2 and seen == ["scale_kernel"]


class Source:
    """A fake CUDA C++ source whose compilation ends when `may_end` is set."""

    def __init__(self, may_end):
        self.may_end, self.targets = may_end, []

    def build(self, target):
        self.targets.append(target)
        assert self.may_end.wait(20)
        if target == "sm_0":
            raise RuntimeError("no such GPU")


def test_cuda_sources_are_built_concurrently_and_once(gpu):
    """No build ends before the last has started."""
    may_end = threading.Event()
    sources = [Source(may_end), Source(may_end)]
    with compile_ahead(workers=3) as ahead:
        for source in (*sources, *sources):
            ahead.add_cuda(source, "sm_90a")
        ahead.add_cuda(sources[0], "sm_0")
        assert len(ahead) == 3
        may_end.set()
        ahead.wait()
    assert sorted(sources[0].targets) == ["sm_0", "sm_90a"] and sources[1].targets == ["sm_90a"]


def test_cuda_launch_is_compiled_ahead_too(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (9, 0))
    added = []
    source = CudaSource("moe_sum.cu", defines={"HIDDEN": 64, "ACTIVE": 2})
    with compile_ahead(workers=1) as ahead:
        monkeypatch.setattr(ahead, "add_cuda", lambda *args: added.append(args))
        stream_build.launch(source.kernel("moe_sum", threads=128), (1,), (X,), False)
    assert added == [(source, "sm_90a")]


def test_listener_receives_built_cuda_kernels(gpu, monkeypatch, tmp_path):
    names = []
    listen(names.append)
    monkeypatch.setattr("firesteel.kernels.cuda.source.compile_program", lambda program: "binary")
    monkeypatch.setattr("firesteel.kernels.cuda.source.current_cache", lambda: Cache())
    source = CudaSource("moe_sum.cu", defines={"HIDDEN": 64, "ACTIVE": 2})
    assert source.build("sm_90a") == source.build("sm_90a") == "binary"
    assert names == ["moe_sum.cu"]


class Cache:
    def get(self, key, build):
        return build()


def test_listener_is_optional():
    tell_built("anything")
