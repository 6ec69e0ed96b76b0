"""What tests of an engine in a process of its own share."""

import asyncio

import pytest

from firesteel.config import resolve


@pytest.fixture(scope="module")
def one_thread_a_child():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def run():
    """Runs coroutines, all on one loop."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def configure(tmp_path_factory, one_thread_a_child):
    """Settings of a small engine on the CPU, with a crash folder of its own and the knobs given."""

    def make(**knobs):
        folder = tmp_path_factory.mktemp("crashes")
        return resolve(
            {
                "device": "cpu", "memory_reserve_gib": 0.0, "page_size": 4, "kv_cache_gib": 0.002,
                "prefix_caching": False, "crash_dir": str(folder), **knobs,
            }
        ).config  # fmt: skip

    return make
