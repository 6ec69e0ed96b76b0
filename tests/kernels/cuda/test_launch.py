"""Launches of small CUDA C++ kernels: with a fake driver on a CPU, with the real one on a GPU."""

import ctypes
import struct
import threading
import time

import pytest
import torch
from cuda.bindings import driver

from firesteel.device import find_device
from firesteel.errors import KernelError
from firesteel.kernels.cuda import launch as cuda_launch
from firesteel.kernels.cuda import source as cuda_source
from firesteel.kernels.cuda.geometry import Geometry
from firesteel.kernels.cuda.launch import (
    CudaFunction,
    PreparedLaunch,
    RepeatedLaunch,
    find_launch_device,
    load_function,
)
from firesteel.kernels.ledger import Launch, Ledger, Ran
from firesteel.kernels.op.op import anywhere, define_op
from firesteel.kernels.op.requirement import Requirement
from firesteel.kernels.op.tolerance import exact
from firesteel.kernels.op.verdict import judge_compiled
from firesteel.kernels.target import find_target

CUDA_0 = torch.device("cuda", 0)
RAN = Ran("op", "cuda")


class Listener:
    """A fake driver that records attributes, launches and streams."""

    def __init__(self, monkeypatch):
        self.stream, self.launches, self.limits = 7, [], []
        self.status = driver.CUresult.CUDA_SUCCESS
        monkeypatch.setattr(driver, "cuLaunchKernelEx", self.cuLaunchKernelEx)
        monkeypatch.setattr(driver, "cuFuncSetAttribute", self.cuFuncSetAttribute)
        monkeypatch.setattr(driver, "cuGetErrorString", lambda status: (driver.CUresult.CUDA_SUCCESS, b"bad luck"))
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: self.stream, raising=False)

    def cuLaunchKernelEx(self, config, handle, arguments, extra):
        second = (ctypes.c_void_p * 2).from_address(arguments)[1]
        factor = ctypes.c_float.from_address(second).value
        self.launches.append((handle, int(config.hStream), config.gridDimX, config.numAttrs, factor))
        return (self.status,)

    def cuFuncSetAttribute(self, handle, attribute, value):
        self.limits.append((attribute.name.removeprefix("CU_FUNC_ATTRIBUTE_"), value))
        return (driver.CUresult.CUDA_SUCCESS,)


@pytest.fixture
def listener(monkeypatch):
    return Listener(monkeypatch)


@pytest.fixture
def function(small):
    return CudaFunction(small("step").build("sm_90a"), CUDA_0, handle=13)


@pytest.fixture
def own_context(monkeypatch):
    """Receives the devices whose context a thread was given; no thread has one yet."""
    given = []
    monkeypatch.setattr(cuda_launch, "_use_context", given.append)
    monkeypatch.setattr(cuda_launch, "_thread", threading.local())
    return given


def geometry(**changes):
    return Geometry(**{"grid": (4,), "threads": 256, "shared_bytes": 0, **changes})


def test_prepared_launch_uses_the_current_stream_and_the_prepared_values(listener, function):
    launch = PreparedLaunch(function, geometry(is_dependent=True), (torch.zeros(3), 1.5, 3))
    launch()
    listener.stream = 8
    launch()
    PreparedLaunch(function, geometry(grid=(5,)), (None, 2.5, 3))()
    assert listener.launches == [(13, 7, 4, 1, 1.5), (13, 8, 4, 1, 1.5), (13, 8, 5, 0, 2.5)]


def test_repeated_launch_uses_stream_and_values_of_each_call(listener, function, own_context):
    launch, ledger = RepeatedLaunch(function, geometry(is_dependent=True), tile="16 warps"), Ledger()
    for listener.stream, factor in ((7, 1.5), (8, 2.5), (8, 0.0)):
        ledger.run(RAN, launch, (None, factor, 3))
    assert listener.launches == [(13, 7, 4, 1, 1.5), (13, 8, 4, 1, 2.5), (13, 8, 4, 1, 0.0)]
    ((noted, count),) = ledger.entries[RAN].launches.items()
    assert noted == Launch("step", "16 warps", function.entry.binary.hash, None) and count == 3
    assert own_context == [CUDA_0], "asked for once per thread"


def test_repeated_launch_refuses_the_same_arguments_as_a_prepared_one(listener, function, own_context):
    launch = RepeatedLaunch(function, geometry())
    launch((None, 1.5, 3))
    with pytest.raises(KernelError, match=r"parameter 1 is .32 of 4 bytes, given was int 2"):
        launch((None, 2, 3))
    with pytest.raises(KernelError, match=r"parameter 2 is .32 of 4 bytes, given was int 4294967296"):
        launch((None, 1.5, 1 << 32))
    with pytest.raises(KernelError, match="step has 3 parameters, 2 were given"):
        launch((None, 1.5))
    with pytest.raises(KernelError, match="step runs on an NVIDIA GPU; its arguments are on cpu"):
        launch((torch.zeros(3), 1.5, 3))
    launch((None, 2.5, -3))
    assert [factor for *_, factor in listener.launches] == [1.5, 2.5]


def test_threads_that_repeat_a_launch_do_not_mix_their_values(listener, function, own_context, monkeypatch):
    """Arguments that one thread wrote for the driver must not reach another thread's launch."""
    seen, launch = [], RepeatedLaunch(function, geometry())

    def read_streams(index):
        return int(threading.current_thread().name)

    def slow_launch(config, handle, arguments, extra):
        time.sleep(0.0005)
        second = (ctypes.c_void_p * 3).from_address(arguments)[1]
        factor = ctypes.c_float.from_address(second).value
        seen.append((int(threading.current_thread().name), int(config.hStream), factor))
        return (driver.CUresult.CUDA_SUCCESS,)

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", read_streams, raising=False)
    launch._launch_kernel = slow_launch

    def work():
        for _ in range(30):
            launch((None, float(threading.current_thread().name), 3))

    threads = [threading.Thread(target=work, name=str(number)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 90 and all(thread == stream == factor for thread, stream, factor in seen)
    assert own_context == [CUDA_0] * 3


def test_kernel_keeps_one_launch_per_geometry(listener, small, own_context, monkeypatch):
    done = driver.CUresult.CUDA_SUCCESS
    monkeypatch.setattr(driver, "cuModuleLoadData", lambda cubin: (done, 1))
    monkeypatch.setattr(driver, "cuModuleGetFunction", lambda module, name: (done, 13))
    monkeypatch.setattr(driver, "cuFuncLoad", lambda handle: (done,))
    monkeypatch.setattr(cuda_launch, "_loaded", {})
    for name, value in (
        ("is_available", True),
        ("current_device", 0),
        ("is_current_stream_capturing", False),
        ("get_device_capability", (9, 0)),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *args, value=value: value)
    kernel = small("step")
    for grid, factor in (((4,), 1.5), ((4,), 2.5), ((5,), 3.5), ((4,), 4.5)):
        kernel.launch(grid=grid, args=(None, factor, 3), tile="small")
    assert [(grid, factor) for _, _, grid, _, factor in listener.launches] == [
        (4, 1.5),
        (4, 2.5),
        (5, 3.5),
        (4, 4.5),
    ]
    assert len(kernel._launches) == 2 and kernel == small("step")


def test_each_launch_is_in_the_ledger_with_the_hash_of_its_machine_code(listener, function):
    launch, ledger = PreparedLaunch(function, geometry(), (None, 1.5, 3), tile="16 warps"), Ledger()
    launch()
    for _ in range(3):
        ledger.run(RAN, launch)
    ((noted, count),) = ledger.entries[RAN].launches.items()
    assert noted == Launch("step", "16 warps", function.entry.binary.hash, None) and count == 3
    assert judge_compiled(noted.compiled) == "none"
    assert ledger.launches() == {"step": 3}


def test_a_failed_launch_is_an_error_and_not_in_the_ledger(listener, function):
    launch, ledger = PreparedLaunch(function, geometry(), (None, 1.5, 3)), Ledger()
    listener.status = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(RuntimeError, match="step: cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE, bad luck"):
        ledger.run(RAN, launch)
    assert ledger.launches() == {}


def test_shared_memory_and_cluster_limits_are_raised_and_never_lowered(listener, function):
    for shared_bytes in (0, 60_000, 50_000, 90_000):
        function.allow(geometry(shared_bytes=shared_bytes))
    function.allow(geometry(cluster=(8,)))
    function.allow(geometry(cluster=(4, 4)))
    expected = [("MAX_DYNAMIC_SHARED_SIZE_BYTES", 60_000), ("MAX_DYNAMIC_SHARED_SIZE_BYTES", 90_000)]
    assert listener.limits == [*expected, ("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)]


def test_consecutive_kernels_request_the_same_shared_memory_carveout(listener, small, monkeypatch):
    """A kernel with another carveout would wait until every SM is idle."""
    done = driver.CUresult.CUDA_SUCCESS
    monkeypatch.setattr(driver, "cuModuleLoadData", lambda cubin: (done, 1))
    monkeypatch.setattr(driver, "cuModuleGetFunction", lambda module, name: (done, 2))
    monkeypatch.setattr(driver, "cuFuncLoad", lambda handle: (done,))
    monkeypatch.setattr(cuda_launch, "_use_context", lambda device: None)
    monkeypatch.setattr(cuda_launch, "_loaded", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for name in ("step", "turn"):
        load_function(small(name).build("sm_90a"), CUDA_0)
    assert listener.limits == [("PREFERRED_SHARED_MEMORY_CARVEOUT", 100)] * 2


@pytest.mark.parametrize(("verdict", "is_met"), [("bf16", True), ("native-fp4", False)])
def test_required_verdict_is_checked_on_the_launched_machine_code(listener, small, verdict, is_met):
    product = CudaFunction(small("product_f16").build("sm_90a"), CUDA_0, handle=13)
    step = CudaFunction(small("step").build("sm_90a"), CUDA_0, handle=14)

    @define_op(bytes=lambda x: x.nbytes, tolerance=exact(why="nothing is computed"))
    def same(x):
        return x

    @same.implementation("cuda", needs=anywhere)
    def launch_both(x):
        PreparedLaunch(step, geometry(), (x, 1.5, 3))()
        PreparedLaunch(product, geometry(), (x, x))()
        return x

    same.prefer("cuda")
    chosen = same.choose(find_device("cpu"), None, Ledger(), Requirement("same", "cuda", verdict))
    if is_met:
        chosen(torch.zeros(3))
    else:
        with pytest.raises(KernelError, match=r"same=cuda@native-fp4 is required, but product_f16 .* and is bf16"):
            chosen(torch.zeros(3))


def test_host_tensors_are_refused(small):
    with pytest.raises(KernelError, match="step runs on an NVIDIA GPU; its arguments are on cpu"):
        small("step").prepare(grid=(1,), args=(torch.zeros(3), 1.5, 3))


def test_without_a_gpu_nothing_is_launched(small, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(KernelError, match="step runs on an NVIDIA GPU; torch sees none"):
        small("step").occupancy()


def test_tensors_must_be_on_the_current_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    class OnGpu(torch.Tensor):
        device = torch.device("cuda", 1)

    with pytest.raises(KernelError, match=r"step runs on cuda:0, .* on cuda:1: call torch.cuda.set_device"):
        find_launch_device("step", (torch.zeros(1).as_subclass(OnGpu), 3))
    assert find_launch_device("step", (3, 1.5)) == CUDA_0


gpu = pytest.mark.gpu


@pytest.fixture
def x():
    """A tensor on a GPU with dependent launch; skips without one."""
    device = find_device("cuda")
    if device.capability < (9, 0):
        pytest.skip(f"{device.name} has no dependent launch")
    return torch.arange(1000, dtype=torch.float32, device=device.torch_device)


def prepare_step(small, x, dependent=False, **options):
    """Prepares a launch that computes x = x + 1."""
    return small("step", **options).prepare(grid=(4,), args=(x, 0.5, x.numel()), dependent=dependent)


@gpu
@pytest.mark.parametrize("dependent", [False, True])
def test_a_chain_of_launches_adds_up(small, x, dependent):
    expected, launch = x + 500, prepare_step(small, x, dependent)
    for _ in range(500):
        launch()
    assert torch.equal(x, expected)


@gpu
@pytest.mark.parametrize("dependent", [False, True])
def test_a_captured_chain_adds_up_at_each_replay(small, x, dependent):
    launch, graph = prepare_step(small, x, dependent), torch.cuda.CUDAGraph()
    expected = x + 300
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(100):
            launch()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(x, expected)


@gpu
def test_a_kernel_that_is_loaded_can_be_prepared_within_a_capture(small, x):
    y, graph = torch.zeros_like(x), torch.cuda.CUDAGraph()
    prepare_step(small, y)()
    y.zero_()
    with torch.cuda.graph(graph):
        for _ in range(5):
            prepare_step(small, y, dependent=True)()
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [5.0] * len(y)


@gpu
def test_launch_is_ordered_with_the_current_stream(small, x):
    launch, stream = prepare_step(small, x), torch.cuda.Stream()
    expected = 2 * (x + 1)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        launch()
        x.mul_(2)
    stream.synchronize()
    assert torch.equal(x, expected)


@gpu
def test_a_second_build_comes_from_disk(small, x, monkeypatch):
    expected = x + 2
    prepare_step(small, x)()
    monkeypatch.setattr(cuda_source, "compile_program", None)
    monkeypatch.setattr(cuda_launch, "_loaded", {})
    prepare_step(small, x)()
    assert torch.equal(x, expected)


@gpu
def test_kernel_can_use_more_than_the_default_shared_memory(small, x):
    y, n = torch.zeros_like(x[:200]), 200
    for shared_bytes in (96 * 1024, 1024):
        turn = small("turn", shared_bytes=shared_bytes).prepare(grid=(1,), args=(y.zero_(), x, n, shared_bytes))
        turn()
        assert torch.equal(y, x[:n].flip(0))
    large = small("turn", shared_bytes=96 * 1024).prepare(grid=(1,), args=(y.zero_(), x, n, 96 * 1024))
    small("turn", shared_bytes=1024).prepare(grid=(1,), args=(y, x, n, 1024))()
    large()
    assert torch.equal(y, x[:n].flip(0))


@gpu
def test_arguments_of_every_kind_arrive(small, x):
    y, seven = torch.zeros(1, dtype=torch.float64, device=x.device), torch.tensor([7], device=x.device).int()
    pair = struct.pack("<iiq", 1, 0, 1 << 40)
    for pointer, last in ((seven, 7), (None, 0.5)):
        args = (y, pair, 0.25, -(1 << 35), -3, 200, pointer)
        small("mixed", threads=1).prepare(grid=(1,), args=args)()
        assert y.item() == 1 + (1 << 40) + 0.25 - (1 << 35) - 3 + 200 + last


@gpu
@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("size", [1, 2, 8])
def test_ctas_are_launched_in_clusters(small, x, size, dependent):
    y = torch.full((16,), -1, dtype=torch.int32, device=x.device)
    kernel = small("rank_in_cluster", threads=1)
    kernel.prepare(grid=(16,), args=(y,), cluster=(size,), dependent=dependent)()
    assert y.tolist() == [number % size for number in range(16)]


@gpu
def test_occupancy_falls_with_shared_memory(small, x):
    assert 1 <= small("turn", shared_bytes=90 * 1024).occupancy() < small("turn", shared_bytes=1024).occupancy()


@gpu
def test_a_thread_that_has_not_computed_yet_can_launch(small, x):
    expected, errors = x + 1, []

    def work():
        try:
            prepare_step(small, x)()
            torch.cuda.synchronize()
        except (RuntimeError, KernelError) as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == [] and torch.equal(x, expected)


@gpu
def test_a_kernel_is_not_loaded_in_the_middle_of_a_capture(small, x, monkeypatch):
    monkeypatch.setattr(cuda_launch, "_loaded", {})
    small("step").build(find_target(torch.cuda.get_device_capability()))
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.add_(1)
        with pytest.raises(KernelError, match="step must be prepared once before a graph is captured"):
            prepare_step(small, x)


@gpu
def test_each_launch_of_a_kernel_uses_its_own_arguments(small, x):
    y, kernel, stream = torch.zeros_like(x), small("step"), torch.cuda.Stream()
    for tensor in (x, y, x):
        kernel.launch(grid=(4,), args=(tensor, 0.5, tensor.numel()), dependent=True)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        kernel.launch(grid=(4,), args=(y, 0.5, 10))
    stream.synchronize()
    expected = torch.arange(len(x), device=x.device)
    assert torch.equal(x, expected + 2.0) and y.tolist() == [2.0] * 10 + [1.0] * (len(y) - 10)


@gpu
def test_error_of_the_driver_is_named(small, x):
    launch = small("step").prepare(grid=(1, 70_000), args=(x, 0.5, 0))
    with pytest.raises(RuntimeError, match=r"step: cuLaunchKernelEx: CUDA_ERROR_INVALID_\w+, "):
        launch()


@gpu
def test_a_profiler_names_the_kernel_as_the_ledger_does(small, x):
    from torch.profiler import ProfilerActivity, profile

    launch, ledger = prepare_step(small, x), Ledger()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(3):
            ledger.run(RAN, launch)
        torch.cuda.synchronize()
    seen = [event.name for event in profiler.events() if event.device_type.name == "CUDA"]
    assert seen.count("step") == ledger.launches()["step"] == 3
