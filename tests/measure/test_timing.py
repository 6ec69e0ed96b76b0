"""Timing: what is called how often, what counts, and copies that outgrow the cache."""

import time
from dataclasses import dataclass, replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.kernels.ops.moe_matmul import random_experts
from firesteel.measure.timing import (
    MAX_COPIES,
    OUTGROW,
    UNKNOWN_CPU_CACHE,
    Timing,
    cold_inputs,
    find_cache_bytes,
    spread,
    time_calls,
)

CPU = find_device("cpu")


@dataclass(frozen=True)
class Packed:
    codes: torch.Tensor
    name: str


def test_every_input_is_called_in_turn_round_after_round():
    called = []
    timing = time_calls(called.append, [("a",), ("b",)], CPU, samples=2, warmups=1, rounds=2)
    assert called == ["a", "b", "a", "b"] * 3
    assert len(timing.samples_s) == 2 and timing.calls == 4 and timing.warmups == 4


def test_a_sample_is_the_seconds_of_one_call(monkeypatch):
    clock = iter([10.0, 16.0, 20.0, 28.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert time_calls(int, [(), ()], CPU, samples=2, warmups=1).samples_s == (3.0, 4.0)


def test_warm_up_is_not_timed():
    slow_once = iter([0.2])
    timing = time_calls(lambda: time.sleep(next(slow_once, 0)), [()], CPU, samples=3, warmups=1)
    assert max(timing.samples_s) < 0.1


def test_median_and_spread_ignore_one_outlier():
    timing = Timing(samples_s=(1.0, 2.0, 3.0, 4.0, 100.0), calls=1, warmups=1)
    assert (timing.median_s, timing.spread_s) == (3.0, 2.0)
    assert spread([7.0]) == 0.0 and spread([1.0, 3.0]) == 1.0


@pytest.mark.parametrize("given", [{"samples": 0}, {"warmups": 0}, {"rounds": 0}])
def test_nothing_to_time_is_an_error(given):
    with pytest.raises(ValueError, match="at least one"):
        time_calls(int, [()], CPU, **given)
    with pytest.raises(ValueError, match="at least one"):
        time_calls(int, [], CPU)


def test_copies_outgrow_the_cache():
    args = (torch.zeros(250), Packed(torch.zeros(1000, dtype=torch.uint8), "x"), [torch.zeros(500)], 3, None)
    copies = cold_inputs(args, cache_bytes=10_000)
    assert len(copies) == 8 and 8 * 4000 >= OUTGROW * 10_000 > 7 * 4000
    assert cold_inputs(args, cache_bytes=0) and len(cold_inputs((torch.zeros(1),), 1 << 30)) == MAX_COPIES


def test_copies_share_no_memory_and_are_equal():
    experts = random_experts(2, 32, 32, torch.Generator().manual_seed(0))
    args = (torch.rand(4), experts, (torch.rand(3),), 2, "label")
    first, second = cold_inputs(args, cache_bytes=args[0].nbytes)[0], cold_inputs(args, 1)[0]
    for copy in (first, second):
        assert torch.equal(copy[0], args[0]) and torch.equal(copy[1].down_codes, experts.down_codes)
        assert torch.equal(copy[2][0], args[2][0]) and copy[3:] == args[3:]
    addresses = [
        one.data_ptr() for copy in (args, first, second) for one in (copy[0], copy[1].down_codes, copy[2][0])
    ]
    assert len(set(addresses)) == 9


def test_cpu_cache_is_the_largest_that_the_kernel_lists(tmp_path):
    for number, size in enumerate(("48K\n", "2048K\n", "105M\n")):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(size)
    assert find_cache_bytes(CPU, tmp_path) == 105 << 20
    assert find_cache_bytes(CPU, tmp_path / "none") == UNKNOWN_CPU_CACHE


def test_gpu_cache_is_its_l2():
    gpu = replace(CPU, capability=(9, 0), l2_bytes=50 << 20)
    assert find_cache_bytes(gpu) == 50 << 20


@pytest.mark.gpu
def test_graph_and_eager_agree_on_a_long_call_and_cold_is_slower_than_warm():
    device = find_device("cuda")
    args = (torch.rand(4 << 20, device=device.torch_device),)
    cold = cold_inputs(args, find_cache_bytes(device))
    graph = time_calls(torch.sum, cold, device)
    eager = time_calls(torch.sum, cold, device, graph=False)
    warm = time_calls(torch.sum, [args], device, rounds=len(cold))
    assert graph.warmups == eager.warmups + len(cold) and graph.calls == warm.calls == len(cold)
    assert 0 < graph.median_s < 1.5 * eager.median_s
    assert warm.median_s < graph.median_s
