"""Steps and prompts of the built-in engine on a CPU: every op is seen, and the times add up."""

import pytest

from firesteel.config import resolve
from firesteel.engine.load import load_engine
from firesteel.lab.profile.engine import profile_prompts, profile_steps
from firesteel.lab.profile.profile import compute_profile


@pytest.fixture(scope="module")
def profiled(checkpoint):
    config = resolve({"device": "cpu", "prefix_caching": False}).config
    loaded = load_engine(checkpoint, config)
    return loaded, profile_steps(loaded, batch=2, context=8, steps=3)


def test_every_op_of_the_network_is_seen_in_each_step(profiled):
    loaded, steps = profiled
    names = [piece.name for piece in steps.slices]
    assert names.count("attention") == 3 * loaded.spec.num_layers
    assert {"rms_norm", "linear", "rope_kv_write", "route", "moe_matmul"} <= set(names)
    assert not loaded.engine.has_work


def test_times_add_up_to_the_step(profiled):
    loaded, steps = profiled
    profile = compute_profile(
        steps.slices, source="test", steps=3, window_us=steps.window_us, num_layers=loaded.spec.num_layers
    )
    begin, end = steps.window_us
    assert profile.sum_ms == pytest.approx((end - begin) / 3e3, rel=1e-6)
    assert sum(row.ms for row in profile.layers) == pytest.approx(
        profile.sum_ms - profile.categories[-1].ms, rel=1e-6
    )


def test_host_stages_are_named(profiled):
    _, steps = profiled
    assert [row.stage for row in steps.host] == [
        "scheduler",
        "batch building",
        "model",
        "sampling and waiting",
        "process border",
    ]
    assert all(row.ms >= 0 for row in steps.host) and steps.measured_ms > 0


@pytest.fixture(scope="module")
def loaded(checkpoint):
    settings = {"device": "cpu", "prefix_caching": False, "max_num_batched_tokens": 16, "max_num_seqs": 4}
    return load_engine(checkpoint, resolve(settings).config)


@pytest.mark.parametrize(("batch", "length", "engine_steps"), [(1, 12, 1), (2, 8, 1), (1, 40, 3)])
def test_prompts_are_profiled_until_their_first_token(loaded, batch, length, engine_steps):
    steps = profile_prompts(loaded, batch=batch, length=length, rounds=2)
    names = [piece.name for piece in steps.slices]
    assert steps.engine_steps == engine_steps and not loaded.engine.has_work
    unfinished = engine_steps - 1  # pieces of a prompt need no attention in the last layer
    assert names.count("attention") == 2 * (engine_steps * loaded.spec.num_layers - unfinished)
    begin, end = steps.window_us
    profile = compute_profile(steps.slices, source="test", steps=2, window_us=steps.window_us)
    assert profile.sum_ms == pytest.approx((end - begin) / 2e3, rel=1e-6)
    assert steps.measured_ms > 0 and {"scheduler", "model"} <= {row.stage for row in steps.host}
