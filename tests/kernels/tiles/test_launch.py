"""Direct launches of compiled kernels always use the kernel that Triton itself would use."""

import itertools
import random

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from firesteel.kernels.ledger import Ledger, Ran
from firesteel.kernels.tiles import launch as module
from firesteel.kernels.tiles.launch import divide_up, launch_kernel, power_of_two
from firesteel.kernels.tiles.tuned import launch_key, using_options, watch_options

RAN = Ran("op", "triton")
X = torch.zeros(64)


@triton.jit
def add_kernel(x, y, count, factor, SIZE: tl.constexpr, ADDS: tl.constexpr):
    places = tl.arange(0, SIZE)
    value = tl.load(x + places, mask=places < count, other=0.0)
    if y is not None:
        value += tl.load(y + places, mask=places < count, other=0.0)
    tl.store(x + places, value * factor + ADDS, mask=places < count)


@triton.jit(do_not_specialize=["count"])
def other_kernel(x, count, SIZE: tl.constexpr = 16):
    tl.store(x + tl.arange(0, SIZE), count)


class SilentDriver:
    """A fake of Triton's GPU driver that records launches."""

    def __init__(self):
        self.launches, self.device, self.stream = [], 0, 7
        self.utils, self.launcher_cls = self, self.make_launcher

    def make_launcher(self, src, metadata):
        def run(x, y, z, stream, function, packed, seen, enter, leave, *args):
            place = (self.device, stream)
            if enter is not None:
                enter(seen)
            self.launches.append(((x, y, z), place, *(getattr(arg, "data_ptr", lambda a=arg: a)() for arg in args)))
            if leave is not None:
                leave(seen)

        return run

    def get_current_device(self):
        return self.device

    def get_current_stream(self, device):
        return self.stream

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_device_properties(self, device):
        return {"max_shared_mem": 232_448}

    def load_binary(self, name, kernel, shared, device):
        return None, 1, 32, 0, 1024  # no module: nothing to unload when the kernel goes


@pytest.fixture
def gpu(monkeypatch):
    """Makes Triton and the launcher assume a GPU, with plans and compiled kernels of this test alone."""
    silent, before = SilentDriver(), driver._active
    monkeypatch.setattr(module, "_plans", {})
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # or Triton 3.9 warns
    for kernel in (add_kernel, other_kernel):
        kernel.device_caches.clear()
    driver.set_active(silent)
    yield silent
    driver._active = before
    for kernel in (add_kernel, other_kernel):
        kernel.device_caches.clear()


@pytest.fixture
def jit_runs(monkeypatch):
    """Receives the names of kernels that Triton itself launches."""
    names, run = [], type(add_kernel).run

    def noting(self, *args, **options):
        names.append(self.__name__)
        return run(self, *args, **options)

    monkeypatch.setattr(type(add_kernel), "run", noting)
    return names


def add(x=X, y=None, count=64, factor=0.5, *, grid=(3,), tile="", **options):
    launch_kernel(add_kernel, grid, x, y, count, factor, tile=tile, **{"SIZE": 64, "ADDS": 0, **options})


def test_second_launch_is_direct_with_its_own_values_and_stream(gpu, jit_runs):
    other, ledger = torch.zeros(64), Ledger()
    ledger.run(RAN, add, tile="64")
    gpu.stream = 8
    ledger.run(RAN, add, other, factor=1.5, grid=(5, 2), tile="64")
    assert jit_runs == ["add_kernel"]
    first, second = X.data_ptr(), other.data_ptr()
    assert gpu.launches == [
        ((3, 1, 1), (0, 7), first, None, 64, 0.5, 64, 0),
        ((5, 2, 1), (0, 8), second, None, 64, 1.5, 64, 0),
    ]
    ((launch, count),) = ledger.entries[RAN].launches.items()
    assert (launch.kernel, launch.tile, count) == ("add_kernel", "64", 2) and launch.compiled is not None


def test_kernel_is_the_one_that_triton_uses_whatever_was_launched_before(gpu):
    """Varies pointer alignment, numbers (1, divisible by 16, large), types and absent tensors."""
    whole = torch.zeros(65)
    tensors = (whole[:64], whole[1:], torch.zeros(64).half())
    calls = [
        dict(zip(("x", "y", "count", "factor", "ADDS", "num_warps"), values, strict=True))
        for values in itertools.product(
            tensors, (None, X, whole[1:]), (1, 16, 17, 1 << 40, True), (0.5, 2), (0, 1), (4, 8)
        )
    ]
    draw = random.Random(1)
    some = draw.sample(calls, 24)
    expected = {}
    for number, call in enumerate(some):
        values = {"SIZE": 64, **call}
        expected[number] = add_kernel[(1,)](**values).hash
    assert len(set(expected.values())) > 10
    for number in draw.sample(range(len(some)), len(some)) + draw.sample(range(len(some)), len(some)):
        ledger = Ledger()
        ledger.run(RAN, add, **some[number])
        ((launch, _),) = ledger.entries[RAN].launches.items()
        assert launch.artefact == expected[number], some[number]


def test_unaligned_pointers_and_values_that_are_not_numbers_are_never_planned(gpu, jit_runs):
    whole = torch.zeros(65)
    for _ in range(2):
        add(whole[1:])
        add(count=True)
    assert jit_runs == ["add_kernel"] * 4 and not module._plans


def test_each_device_has_its_own_plan(gpu, jit_runs):
    for gpu.device in (0, 1, 0, 1):
        add()
    assert jit_runs == ["add_kernel"] * 2
    assert [place for _, place, *_ in gpu.launches] == [(0, 7), (1, 7), (0, 7), (1, 7)]


def test_a_profilers_hooks_see_every_launch_and_none_once_they_are_gone(gpu):
    seen = []
    for chain in (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook):
        add()
        chain.add(lambda metadata: seen.append(metadata.get()["name"]))
        try:
            add()
            add()
        finally:
            chain.calls.clear()
    add()
    assert seen == ["add_kernel"] * 4


def test_other_hooks_and_debug_code_are_left_to_triton(gpu, jit_runs, monkeypatch):
    add()
    seen = []
    monkeypatch.setattr(add_kernel, "pre_run_hooks", [lambda *args, **options: seen.append(options["SIZE"])])
    add()
    monkeypatch.setattr(add_kernel, "pre_run_hooks", [])
    monkeypatch.setattr(knobs.runtime, "debug", True)
    add()
    assert seen == [64] and jit_runs == ["add_kernel"] * 3


def test_changed_options_are_used_until_they_are_reset(gpu):
    def warps():
        ledger = Ledger()
        ledger.run(RAN, add, num_warps=4)
        ((launch, _),) = ledger.entries[RAN].launches.items()
        return launch.tile, launch.compiled.metadata.num_warps

    changed = {launch_key("add_kernel", {"SIZE": 64, "ADDS": 0, "num_warps": 4}): {"num_warps": 8}}
    options = [warps(), warps()]
    with using_options(changed):
        options += [warps(), warps()]
        with watch_options() as seen:
            warps()
        assert list(seen) == list(changed), "a launch that was planned before is seen too"
    assert [*options, warps()] == [("", 4), ("", 4), (" tuned", 8), (" tuned", 8), ("", 4)]


def test_parameters_with_defaults_are_left_to_triton(gpu, jit_runs):
    for count in (5, 6, 5):
        launch_kernel(other_kernel, (1,), X, count)
    assert jit_runs == ["other_kernel"] * 3


def test_plans_are_bounded(gpu, monkeypatch):
    monkeypatch.setattr(module, "MOST_PLANS", 3)
    for count in range(10, 20):
        add(count=count)
        assert 1 <= len(module._plans) <= 3


@pytest.mark.parametrize(("count", "size"), [(1, 1), (64, 64), (65, 64), (5760, 128), (2880, 1024)])
def test_grids_are_computed_as_in_triton(count, size):
    assert divide_up(count, size) == triton.cdiv(count, size)
    assert power_of_two(count) == triton.next_power_of_2(count)
