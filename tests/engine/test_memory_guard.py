"""Requests on unified memory: none is admitted that would take the host below its reserve."""

from dataclasses import replace

import pytest

from firesteel.config import BatchConfig, resolve
from firesteel.device import GIB
from firesteel.device.catalogue import CATALOGUE
from firesteel.engine.cache.kv_cache import count_step_bytes
from firesteel.engine.load import load_engine
from firesteel.engine.memory_guard import MemoryGuard
from firesteel.errors import HostMemoryLow
from firesteel.model.spec import PRESETS
from firesteel.types import Request, SamplingParams

SPEC = PRESETS["gpt-oss-120b"]
BATCH = BatchConfig(max_num_batched_tokens=4096)


def guard(available, cached=0):
    return MemoryGuard(
        SPEC,
        CATALOGUE["gb10"],
        BATCH,
        12.0,
        find_available=lambda device: int(available),
        find_cached=lambda device: int(cached),
    )


def request(tokens):
    return Request(request_id="a", token_ids=[1] * tokens, params=SamplingParams(max_tokens=1))


@pytest.mark.parametrize("tokens", [1, 100, 4096, 100_000])
def test_request_may_use_what_is_free_above_the_reserve_and_no_more(tokens):
    needed = count_step_bytes(SPEC, min(tokens, 4096))  # a longer prompt is computed in several steps
    guard(12 * GIB + needed).check(request(tokens))
    with pytest.raises(HostMemoryLow, match=r"12\.0 must stay free: send it again later"):
        guard(12 * GIB + needed - 1).check(request(tokens))


def test_memory_that_torch_holds_already_is_not_needed_again():
    guard(12 * GIB, cached=count_step_bytes(SPEC, 4096)).check(request(4096))
    with pytest.raises(HostMemoryLow):
        guard(12 * GIB - 1, cached=GIB * 100).check(request(1))  # the host is below its reserve already


def test_engine_on_unified_memory_refuses_and_recovers(checkpoint):
    config = resolve({"device": "cpu", "memory_reserve_gib": 0.0}, environ={}).config
    engine = load_engine(checkpoint, config).engine
    assert engine.guard is None  # a device whose memory is its own
    free = [0]
    engine.guard = MemoryGuard(
        engine.runner.model.spec,
        replace(engine.device, is_unified=True),
        engine.config,
        1.0,
        find_available=lambda device: free[0],
    )
    with pytest.raises(HostMemoryLow):
        engine.submit(request(3))
    assert not engine.has_work
    free[0] = 2 * GIB
    engine.submit(request(3))
    assert engine.has_work
