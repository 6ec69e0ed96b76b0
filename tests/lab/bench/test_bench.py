"""The meter reads a server of known speed."""

import json
import os

import pytest

from firesteel.lab.bench.bench import CONTEXT, FOLLOW_UP, measure
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.bench.roof import ServedModel, find_roof
from firesteel.model.spec import PRESETS
from tests.lab.mock import mock_server

PP_TOK_S, TG_TOK_S = 400.0, 50.0
ERROR = 0.02


def measure_mock(plan):
    """Once: a reading that is off is a failure, whoever was late."""
    with mock_server(pp_tok_s=PP_TOK_S, tg_tok_s=TG_TOK_S) as url:
        return measure(url, plan=plan)


@pytest.fixture(scope="module")
def found():
    """Long enough that a first token which is late by 20 ms is far below the error looked for."""
    plan = BenchPlan(pp=(512,), tg=(100,), depths=(0, 256), concurrency=(1,), cached_depths=(), runs=3, warmups=0)
    return measure_mock(plan)


@pytest.fixture(scope="module")
def brief():
    """For what does not depend on the clock."""
    plan = BenchPlan(pp=(64,), tg=(8,), depths=(0, 32), concurrency=(1,), cached_depths=(), runs=3, warmups=0)
    with mock_server(pp_tok_s=4000.0, tg_tok_s=400.0) as url:
        served, roof = ServedModel(spec=PRESETS["gpt-oss-20b"]), find_roof("NVIDIA H200")
        return measure(url, plan=plan, served=served, roof=roof)


@pytest.fixture(scope="module")
def crowd():
    """Longer still: streams that begin apart by milliseconds count in a crowd's figures."""
    plan = BenchPlan(pp=(800,), tg=(100,), depths=(0,), concurrency=(4,), cached_depths=(), runs=3)
    return measure_mock(plan).rows[0]


@pytest.mark.slow
@pytest.mark.parametrize("row", [0, 1])
def test_one_stream_is_read_within_two_percent(found, row):
    series = found.rows[row].series
    assert series["pp_tok_s"].median == pytest.approx(PP_TOK_S, rel=ERROR)
    assert series["tg_tok_s"].median == pytest.approx(TG_TOK_S, rel=ERROR)
    assert series["tpot_ms"].median == pytest.approx(1e3 / TG_TOK_S, rel=ERROR)


@pytest.mark.slow
def test_a_crowd_is_read_within_two_percent(crowd):
    assert crowd.series["tg_tok_s"].median == pytest.approx(4 * TG_TOK_S, rel=ERROR)
    assert crowd.series["pp_tok_s"].median == pytest.approx(4 * PP_TOK_S, rel=ERROR)
    assert len(crowd.series["tg_tok_s"].values) == 3 and len(crowd.series["ttft_ms"].values) == 12


def test_figures_carry_bytes_and_share(brief):
    share = brief.rows[0].shares["tg_tok_s"]
    assert share.bytes_a_token == pytest.approx(3.73e9, rel=0.02)  # and what the cache holds
    assert share.share == pytest.approx(brief.rows[0].series["tg_tok_s"].median / share.ceiling_tok_s)
    assert share.device == "NVIDIA H200" and share.of == "measured read"
    assert brief.rows[0].shares["pp_tok_s"].share < 1


def test_raw_samples_are_kept_as_json(brief):
    content = json.loads(json.dumps(brief.as_dict()))
    assert len(content["rows"]) == 2 and content["plan"]["pp"] == [64]
    batches = content["rows"][-1]["batches"]
    assert len(batches) == 3 and all(len(one["token_times_s"]) == 8 for [one] in batches)
    assert not brief.failures


@pytest.mark.slow
def test_a_cached_context_is_a_phase_of_its_own():
    with mock_server(pp_tok_s=1000.0, tg_tok_s=500.0, prefix_caching=True) as url:
        plan = BenchPlan(pp=(100,), tg=(4,), depths=(0,), concurrency=(1,), cached_depths=(400,), runs=2)
        _, context, follow_up = measure(url, plan=plan, pid=os.getpid()).rows
    assert (context.phase, follow_up.phase) == (CONTEXT, FOLLOW_UP)
    assert context.series["ttft_ms"].median > 350
    assert follow_up.series["ttft_ms"].median < 200
    assert follow_up.batches[0][0].cached_tokens > 350


@pytest.mark.slow
def test_failures_are_kept_and_what_has_no_room_is_left_out():
    with mock_server(max_context=600) as url:
        plan = BenchPlan(
            pp=(512,), tg=(8,), depths=(0, 4096), concurrency=(1,), cached_depths=(), runs=1, warmups=0
        )
        result = measure(url, plan=plan)
    assert [row.workload.depth for row in result.rows] == [0]
    assert "4096" in result.left_out[0]


def test_workload_that_takes_long_is_run_less_often_and_that_is_said():
    with mock_server(pp_tok_s=50_000.0, tg_tok_s=2000.0) as url:
        plan = BenchPlan(pp=(64,), tg=(4,), depths=(0,), concurrency=(1,), cached_depths=(), runs=5, enough_s=0.0)
        result = measure(url, plan=plan)
    assert len(result.rows[0].batches) == 3 and result.left_out == [
        "pp64 tg4: 3 runs instead of 5, which took more than 0 s"
    ]
