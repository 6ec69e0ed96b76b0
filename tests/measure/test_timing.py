"""Timing: number of calls, samples, and the size of the cache."""

import time
from dataclasses import replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.measure.timing import (
    OUTGROW,
    UNKNOWN_CPU_CACHE,
    Timing,
    find_cache_bytes,
    spread,
    time_calls,
)

CPU = find_device("cpu")


def test_all_inputs_are_called_in_turn_in_every_round():
    called = []
    timing = time_calls(called.append, [("a",), ("b",)], CPU, samples=2, warmups=1, rounds=2)
    assert called == ["a", "b", "a", "b"] * 3
    assert len(timing.samples_s) == 2 and timing.calls == 4 and timing.warmups == 4


def test_sample_is_the_time_per_call(monkeypatch):
    clock = iter([10.0, 16.0, 20.0, 28.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert time_calls(int, [(), ()], CPU, samples=2, warmups=1).samples_s == (3.0, 4.0)


def test_warm_up_is_not_timed():
    slow_once = iter([0.2])
    timing = time_calls(lambda: time.sleep(next(slow_once, 0)), [()], CPU, samples=3, warmups=1)
    assert max(timing.samples_s) < 0.1


def test_median_and_spread_ignore_one_outlier():
    timing = Timing(samples_s=(1.0, 2.0, 3.0, 4.0, 100.0), calls=1, warmups=1)
    assert (timing.median_s, spread(timing.samples_s)) == (3.0, 2.0)
    assert spread([7.0]) == 0.0 and spread([1.0, 3.0]) == 1.0


@pytest.mark.parametrize("given", [{"samples": 0}, {"warmups": 0}, {"rounds": 0}])
def test_nothing_to_time_is_an_error(given):
    with pytest.raises(ValueError, match="at least one"):
        time_calls(int, [()], CPU, **given)
    with pytest.raises(ValueError, match="at least one"):
        time_calls(int, [], CPU)


def test_cpu_cache_is_the_largest_listed_in_sys(tmp_path):
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
    copies = -(-OUTGROW * find_cache_bytes(device) // args[0].nbytes)
    cold = [(args[0].clone(),) for _ in range(copies)]
    graph = time_calls(torch.sum, cold, device)
    eager = time_calls(torch.sum, cold, device, graph=False)
    warm = time_calls(torch.sum, [args], device, rounds=len(cold))
    assert graph.warmups == eager.warmups + len(cold) and graph.calls == warm.calls == len(cold)
    assert 0 < graph.median_s < 1.5 * eager.median_s
    assert warm.median_s < graph.median_s
