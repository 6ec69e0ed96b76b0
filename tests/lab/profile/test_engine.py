"""The built-in engine's own steps on a CPU: every op is seen, and time is the step's."""

import pytest

from firesteel.config import resolve
from firesteel.engine.load import load_engine
from firesteel.lab.profile.engine import profile_steps
from firesteel.lab.profile.profile import profile


@pytest.fixture(scope="module")
def watched(checkpoint):
    config = resolve({"device": "cpu", "prefix_caching": False}).config
    loaded = load_engine(checkpoint, config)
    return loaded, profile_steps(loaded, batch=2, context=8, steps=3)


def test_every_op_of_the_network_is_seen_in_each_step(watched):
    loaded, found = watched
    names = [one.name for one in found.slices]
    assert names.count("attention") == 3 * loaded.spec.num_layers
    assert {"rms_norm", "linear", "rope_kv_write", "route", "moe_matmul"} <= set(names)
    assert not loaded.engine.has_work


def test_all_of_the_time_is_accounted_for(watched):
    loaded, found = watched
    result = profile(
        found.slices, source="test", steps=3, window_us=found.window_us, num_layers=loaded.spec.num_layers
    )
    begin, end = found.window_us
    assert result.sum_ms == pytest.approx((end - begin) / 3e3, rel=1e-6)
    assert sum(one["ms"] for one in result.layers) == pytest.approx(
        result.sum_ms - result.categories[-1]["ms"], rel=1e-6
    )


def test_host_stages_are_named(watched):
    _, found = watched
    assert [one["stage"] for one in found.host] == [
        "scheduler",
        "batch building",
        "model",
        "sampling and waiting",
        "process border",
    ]
    assert all(one["ms"] >= 0 for one in found.host) and found.measured_ms > 0
