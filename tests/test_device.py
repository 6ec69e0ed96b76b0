"""The device that computes and its properties."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from firesteel.config import resolve
from firesteel.device import DeviceSpec, available_bytes, find_device
from firesteel.device.host_memory import HostMemory, find_host_memory
from firesteel.errors import UserError

UNIFIED = DeviceSpec(
    torch_device=torch.device("cuda:0"),
    name="GB10",
    capability=(12, 1),
    num_sms=48,
    l2_bytes=1,
    memory_bytes=2,
    is_unified=True,
)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_cpu_computes_in_float32_and_has_no_capability():
    device = find_device("cpu")
    assert (device.torch_device, device.capability, device.is_cuda) == (torch.device("cpu"), None, False)
    assert device.dtype == torch.float32


def test_gpu_computes_in_bf16():
    assert UNIFIED.is_cuda and UNIFIED.dtype == torch.bfloat16


@pytest.mark.parametrize(("current", "expected"), [(0, ["cuda:1"]), (1, [])])
def test_used_gpu_becomes_the_current_one(monkeypatch, current, expected):
    chosen = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(str(device)))
    replace(UNIFIED, torch_device=torch.device("cuda:1")).use()
    find_device("cpu").use()
    assert chosen == expected


def test_auto_is_the_cpu_without_a_gpu(no_gpu):
    assert find_device("auto") == find_device("cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_requested_gpu_that_is_absent_is_an_error_with_the_cure(no_gpu, name):
    with pytest.raises(UserError, match=rf"device {name} was requested, .*`firesteel doctor`.*--device cpu"):
        find_device(name)


def test_gpu_beyond_the_last_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match=r"device cuda:2 does not exist: torch sees 2 GPU\(s\)"):
        find_device("cuda:2")


def test_cpu_memory_is_that_of_the_system():
    device = find_device("cpu")
    assert device.memory_bytes == find_host_memory().total_bytes
    assert 0 < available_bytes(device) < device.memory_bytes


def test_unified_memory_is_reported_by_the_system(monkeypatch):
    monkeypatch.setattr("firesteel.device.find_host_memory", lambda: HostMemory(99, 42))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 8))
    assert available_bytes(UNIFIED) == 42


@pytest.mark.parametrize(("is_integrated", "expected"), [(True, 50), (False, 80)])
def test_size_of_unified_memory_is_limited_like_the_hosts(monkeypatch, is_integrated, expected):
    facts = SimpleNamespace(
        name="GPU",
        major=12,
        minor=1,
        multi_processor_count=48,
        L2_cache_size=1,
        total_memory=80,
        is_integrated=is_integrated,
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    monkeypatch.setattr("firesteel.device.find_host_memory", lambda: HostMemory(50, 40))
    assert find_device("cuda").memory_bytes == expected


def test_memory_of_a_discrete_gpu_is_reported_by_the_driver(monkeypatch):
    card = DeviceSpec(
        torch_device=torch.device("cuda:0"),
        name="H200",
        capability=(9, 0),
        num_sms=132,
        l2_bytes=1,
        memory_bytes=8,
        is_unified=False,
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 8))
    assert available_bytes(card) == 7


@pytest.mark.gpu
def test_properties_of_a_gpu():
    device = find_device("auto")
    assert device == find_device("cuda") == find_device("cuda:0")
    assert device.capability == torch.cuda.get_device_capability(0)
    assert device.num_sms > 1 and device.l2_bytes > 1 << 20
    assert 0 < available_bytes(device) <= max(device.memory_bytes, find_host_memory().total_bytes)


def test_every_device_name_that_the_setting_accepts_is_understood(no_gpu):
    for name in ("auto", "cpu"):
        assert find_device(resolve({"device": name}, environ={}).config.model.device).name == "CPU"
