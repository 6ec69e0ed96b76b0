"""Figures of decoding through the engine."""

import pytest

from firesteel.measure.decode.experts import ExpertCount
from firesteel.measure.decode.kernel_caches import CacheUse
from firesteel.measure.decode.marks import StepTimes
from firesteel.measure.loop.figures import LoopFigures, Startup
from firesteel.measure.roofline.roofline import StepShape, step_cost
from firesteel.model.spec import PRESETS

BIG = PRESETS["gpt-oss-120b"]


def figures():
    """100 steps of 8 requests, 5 ms each."""
    return LoopFigures(
        context=512,
        num_tokens=800,
        seconds=0.5,
        stages_s={"schedule": 0.01, "wait": 0.4},
        times=StepTimes(steps_ms=(5.0, 5.0), gaps_ms=(0.1, 0.3)),
        bare_ms=(4.0, 4.5, 9.0),
        cost=step_cost(BIG, StepShape(context=600, requests=8, distinct_experts=28.0)),
        read_gb_s=4645.0,
        experts=ExpertCount(num_tokens=104, per_step=28.0, per_layer=(90,) * 36),
        reread=None,
        is_captured=True,
    )


def test_floor_is_the_time_to_read_a_step_at_the_ceiling():
    measured = figures()
    assert measured.batch == 8 and measured.step_ms == pytest.approx(5) and measured.tok_s == 1600
    assert measured.token_bytes == measured.cost.bytes / 8
    assert measured.floor_ms == pytest.approx(1e3 * measured.cost.bytes / 4645e9)
    assert (
        measured.share
        == pytest.approx(measured.tok_s / measured.floor_tok_s)
        == pytest.approx(measured.floor_ms / 5)
    )
    assert measured.share_of_bare == pytest.approx(0.9)


def test_rest_is_the_time_outside_all_stages():
    assert figures().stages_ms == pytest.approx({"schedule": 0.1, "wait": 4.0, "rest": 0.9})


def test_dictionary_has_the_fields_of_a_record():
    content = figures().as_dict()
    assert (content["batch"], content["context"], content["bytes_at_context"]) == (8, 512, 600)
    assert content["way"] == "through the engine, CUDA graph" and content["ms_a_token"] == pytest.approx(0.625)
    assert content["stages_ms_a_step"]["schedule"] == pytest.approx(0.1) and content["idle_share"] == pytest.approx(
        0.04
    )


def test_start_up_reports_the_state_of_caches():
    startup = Startup(first_token_s=1.0, second_token_s=2.0, caches={"Triton": CacheUse(held=0, compiled=9)})
    assert startup.as_dict()["caches"] == {"Triton": {"state": "cold", "held": 0, "compiled": 9}}
