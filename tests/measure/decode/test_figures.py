"""Figures of measured decoding steps."""

import pytest

from firesteel.measure.decode.experts import ExpertCount
from firesteel.measure.decode.figures import DecodeFigures
from firesteel.measure.roofline.roofline import StepShape, step_cost
from firesteel.model.spec import PRESETS

BIG = PRESETS["gpt-oss-120b"]


def figures(batch, **changes):
    experts = ExpertCount(num_tokens=100, per_step=4.0 * batch, per_layer=(90,) * 36)
    step = StepShape(context=2048, requests=batch, distinct_experts=4.0 * batch)
    values = {
        "model": "gpt-oss-120b",
        "way": "CUDA graph, dependent launch",
        "samples_ms": (2.0, 9.0, 2.2),
        "groups_ms": {"qkv": 0.4},
        "groups_by": "a graph",
        "cost": step_cost(BIG, step),
        "read_gb_s": 4645.0,
        "experts": experts,
        "checked_steps": 256,
        "checked_with_delays": False,
        "allocated_bytes": 7,
    }
    return DecodeFigures(**{**values, **changes})


def test_speed_is_the_median_step_over_all_requests():
    one, eight = figures(1), figures(8)
    assert one.step_ms == 2.2 and one.tok_s == pytest.approx(1e3 / 2.2) and eight.tok_s == pytest.approx(8e3 / 2.2)


def test_share_is_floor_time_over_measured_time():
    measured = figures(1)
    assert measured.floor_ms == pytest.approx(1e3 * measured.cost.bytes / 4645e9)
    assert (
        measured.share
        == pytest.approx(measured.tok_s / measured.floor_tok_s)
        == pytest.approx(measured.floor_ms / 2.2)
    )


def test_bytes_per_token_are_step_bytes_over_requests():
    eight = figures(8)
    assert eight.token_bytes == eight.cost.bytes / 8 and figures(1).token_bytes == figures(1).cost.bytes


def test_dictionary_has_the_fields_of_a_record():
    content = figures(2).as_dict()
    assert (content["batch"], content["context"], content["steps"]) == (2, 2048, 3)
    assert content["experts"] == {
        "tokens": 100,
        "distinct_a_layer_and_step": 8.0,
        "distinct_by_layer": [90] * 36,
        "distinct_in_all_layers": 3240,
    }
    assert content["ms_a_token"] == content["ms_a_step"] / 2 == 1.1
    assert (
        content["allocated_bytes"] == 7 and content["checked_steps"] == 256 and content["groups_ms"] == {"qkv": 0.4}
    )
