"""Time is counted once, adds up to the step, and belongs to the right category and layer."""

import json

import pytest

from firesteel.kernels.op.profile import ATTENTION, DENSE, EXPERTS, MOE_OVERHEAD, SAMPLING
from firesteel.lab.profile.names import GAPS
from firesteel.lab.profile.profile import CategoryTime, compute_profile, own_time, parse_profile
from firesteel.lab.trace import Slice
from firesteel.measure.roofline.roofline import StepShape, step_cost
from firesteel.model.spec import PRESETS


def step_of(start, layers=2):
    """A step with qkv, attention and experts in each layer, a gap of 1 us after each, then sampling."""
    slices, now = [], start
    for _ in range(layers):
        for name, us in (("decode_qkv", 4.0), ("decode_attention", 2.0), ("decode_fc1", 10.0), ("decode_fc2", 5.0)):
            slices.append(Slice(name, now, now + us))
            now += us + 1.0
    return [*slices, Slice("decode_sample", now, now + 3.0)], now + 3.0


@pytest.fixture
def three_steps():
    slices, now = [], 0.0
    for _ in range(3):
        more, now = step_of(now)
        slices += more
    return slices


def test_categories_and_gaps_add_up_to_the_step(three_steps):
    profile = compute_profile(three_steps, source="test")
    assert profile.steps == 3
    times = {row.category: row.ms for row in profile.categories}
    assert times == pytest.approx({EXPERTS: 0.030, DENSE: 0.008, ATTENTION: 0.004, SAMPLING: 0.003, GAPS: 0.008})
    assert profile.sum_ms == pytest.approx(profile.step_ms) == pytest.approx(0.053)
    assert sum(row.share for row in profile.categories) == pytest.approx(1.0)


def test_overlapping_kernels_are_counted_once():
    owned, gaps = own_time([Slice("a", 0, 10), Slice("b", 5, 15), Slice("c", 6, 8), Slice("d", 20, 30)])
    assert owned == [10, 5, 0, 10] and gaps == 5


def test_window_adds_the_time_before_and_after():
    profile = compute_profile([Slice("linear", 10, 20)], source="test", steps=1, window_us=(0.0, 25.0))
    assert profile.categories[-1] == CategoryTime(category=GAPS, ms=0.015, share=0.6)


def test_layers_have_their_kernels(three_steps):
    layers = compute_profile(three_steps, source="test", num_layers=2).layers
    assert [row.layer for row in layers] == ["0", "1", "outside layers"]
    assert layers[0].categories[EXPERTS] == layers[1].categories[EXPERTS] == pytest.approx(0.015)
    assert layers[2].ms == pytest.approx(0.003) and layers[2].categories[SAMPLING] == pytest.approx(0.003)


def test_bandwidth_is_bytes_of_the_op_over_its_time(three_steps):
    cost = step_cost(PRESETS["gpt-oss-20b"], StepShape())
    profile = compute_profile(three_steps, source="test", cost=cost)
    [qkv] = [row for row in profile.kernels if row.name == "decode_qkv"]
    moved = next(op.bytes for op in cost.ops if op.part == "qkv")
    assert qkv.gb_s == pytest.approx(moved / 8e-6 / 1e9)
    assert qkv.calls == 2 and qkv.us_a_call == pytest.approx(4.0)
    assert next(row for row in profile.kernels if row.name == "decode_sample").gb_s is None


def test_kernels_of_larger_batches_have_categories_and_bandwidths():
    """The names are those of a decoding step of 16 tokens."""
    names = (
        "rms_norm_kernel",
        "tile_kernel",
        "rope_kv_write_kernel",
        "attend",
        "merge",
        "vector_kernel",
        "choose_kernel",
        "moe_stream",
        "moe_sum",
        "draw_part",
        "choose_part",
    )
    slices = [Slice(name, 10 * number, 10 * number + 5) for number, name in enumerate(names)]
    cost = step_cost(PRESETS["gpt-oss-20b"], StepShape(requests=16, context=128))
    profile = compute_profile(slices, source="test", steps=1, cost=cost)
    rates = {row.category: row.gb_s for row in profile.categories}
    assert {name for name, rate in rates.items() if rate is not None} == {EXPERTS, MOE_OVERHEAD, DENSE, ATTENTION}
    rates = {row.name: row.gb_s for row in profile.kernels}
    reading = {"tile_kernel", "rope_kv_write_kernel", "attend", "vector_kernel", "moe_stream"}
    assert {name for name, rate in rates.items() if rate is not None} == reading


def test_difference_from_the_unprofiled_step_is_stated(three_steps):
    assert "+6.0 %" in compute_profile(three_steps, source="test", measured_ms=0.05).in_words()


def test_steps_are_guessed_without_a_sampling_kernel():
    slices = [Slice(name, number, number + 0.5) for number, name in enumerate(["linear", "linear", "rms_norm"] * 4)]
    assert compute_profile(slices, source="test").steps == 4


def test_window_that_cuts_through_a_step_is_counted_by_its_rarest_sampling_kernel():
    """The greatest common divisor of the calls would be 1: it holds two whole steps and a part of a third."""
    names = ["linear", "top_p_sampling", "argmax"] * 3
    slices = [Slice(name, number, number + 0.5) for number, name in enumerate(names)][2:]
    assert compute_profile(slices, source="test", window_us=(2.0, 9.0)).steps == 2


def test_profile_is_the_same_after_json(three_steps):
    cost = step_cost(PRESETS["gpt-oss-20b"], StepShape())
    profile = compute_profile(three_steps, source="test", num_layers=2, cost=cost, measured_ms=0.05)
    content = json.loads(json.dumps(profile.as_dict()))
    assert content["layers"][0][EXPERTS] == pytest.approx(0.015)
    assert parse_profile(content) == profile
