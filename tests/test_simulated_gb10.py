"""What firesteel decides on a GB10, from its figures alone: plans, memory, steps, doctor, report."""

from dataclasses import replace

import pytest
import torch

from firesteel import doctor
from firesteel.config import KernelConfig
from firesteel.defaults import find_defaults
from firesteel.device import GIB
from firesteel.device.catalogue import CATALOGUE
from firesteel.device.host_memory import HostMemory
from firesteel.engine.cache.kv_cache import (
    count_pages,
    find_dtype,
    graph_bytes,
    new_cache,
    page_bytes,
    working_bytes,
)
from firesteel.engine.limits import find_budget, find_most_requests
from firesteel.engine.step.step_store import FusedOps, StepStore
from firesteel.kernels.registry import DECODE_OPS, NETWORK_OPS
from firesteel.kernels.stream.plan import machine_of
from firesteel.kernels.target import SHARED_LIMIT_BYTES
from firesteel.model.spec import PRESETS
from firesteel.model.weights import check_memory, weight_bytes
from firesteel.spark_report.parts import list_parts, proof_target

GB10 = CATALOGUE["gb10"]
LARGE = PRESETS["gpt-oss-120b"]
LIMIT = 101_376


def test_kernels_are_planned_for_the_gpu_of_the_catalogue():
    machine = machine_of(GB10.capability)
    assert (machine.num_sms, machine.shared_bytes) == (GB10.num_sms, SHARED_LIMIT_BYTES["sm_121a"]) == (48, LIMIT)


@pytest.mark.parametrize("op", DECODE_OPS, ids=lambda op: op.name)
def test_every_kernel_of_a_decoding_step_fits(op):
    codes = list(op.make_device_code(GB10.capability))
    assert codes and all(code.kernel.shared_bytes <= LIMIT for code in codes)


@pytest.fixture
def config():
    return find_defaults({}, GB10, environ={}, triton=(3, 8)).config


def test_the_120b_is_loaded_and_leaves_the_host_its_reserve(config, monkeypatch):
    """What remains for the host when weights, pages, steps and graphs are in memory."""
    weights, reserve = weight_bytes(LARGE), config.model.memory_reserve_gib
    monkeypatch.setattr("firesteel.device.find_host_memory", lambda: HostMemory(119 * GIB, 112 * GIB))
    check_memory(weights, GB10, reserve)
    left = 112 * GIB - weights
    monkeypatch.setattr("firesteel.device.find_host_memory", lambda: HostMemory(119 * GIB, left))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (left, 119 * GIB))
    batch = replace(
        config.batch,
        max_num_seqs=find_most_requests(config.batch, GB10),
        max_num_batched_tokens=find_budget(config.batch, GB10),
    )
    pages = count_pages(LARGE, GB10, batch, config.cache, max_context=LARGE.max_context, reserve_gib=reserve)
    taken = pages * page_bytes(LARGE, batch.page_size, find_dtype(config.cache.kv_dtype, GB10))
    taken += working_bytes(LARGE, batch) + graph_bytes(LARGE, batch, LARGE.max_context)
    assert reserve >= 12 and left - taken >= reserve * GIB
    assert pages * batch.page_size >= LARGE.max_context


def test_steps_of_one_to_eight_requests_are_fused(llm):
    """The store of a small model, with as many requests as on a GB10."""
    most = find_most_requests(find_defaults({}, GB10, environ={}, triton=(3, 8)).config.batch, GB10)
    store = StepStore(
        llm.model,
        new_cache(llm.spec, 40, 4, llm.device, torch.float32),
        replace(GB10, torch_device=torch.device("cpu")),
        KernelConfig(),
        fused=FusedOps(ops=None),
        idle_page=39,
        most_requests=most,
        max_context=llm.max_context,
    )
    sizes = [size for size, _ in store.sizes()]
    assert set(range(1, 9)) <= set(sizes) and max(sizes) == most
    assert not store.refusals


def test_doctor_judges_it_and_names_the_implementation_of_every_op():
    facts = replace(doctor.look(), device=GB10)
    assert any("NVIDIA GB10" in finding.found for finding in doctor.judge(facts))
    chosen = {finding.check: finding.found for finding in doctor.choices(GB10)}
    assert all(f"op {op.name}" in chosen for op in NETWORK_OPS)
    assert all("NVIDIA GB10" in chosen[f"op {op.name}"] for op in NETWORK_OPS)


def test_report_proves_and_times_what_a_gb10_runs(tmp_path):
    parts = {part.name: part.arguments for part in list_parts(GB10, tmp_path, quick=False)}
    assert proof_target(GB10) == "sm_121a"
    batches = parts["decode-gpt-oss-120b-mxfp4-batches"]
    assert batches[batches.index("--batch") + 1] == "2,3,4,5,6,7,8"
