"""The benchmark measures a server of known speed."""

import asyncio
import json
import os

import pytest

from firesteel.lab.bench.bench import Meter, measure
from firesteel.lab.bench.plan import BenchPlan, BenchWorkload
from firesteel.lab.bench.result import CONTEXT, FOLLOW_UP
from firesteel.lab.bench.roof import ServedModel, find_roof
from firesteel.lab.client.exchange import Exchange
from firesteel.lab.client.load_client import LoadClient
from firesteel.model.spec import PRESETS
from tests.lab.mock import mock_server

PP_TOK_S, TG_TOK_S = 400.0, 50.0
ERROR = 0.02


def measure_mock(plan):
    """Measures once: a wrong figure is a failure, whatever caused the delay."""
    with mock_server(pp_tok_s=PP_TOK_S, tg_tok_s=TG_TOK_S) as url:
        return measure(url, plan=plan)


@pytest.fixture(scope="module")
def bench():
    """Long enough that a first token that is late by 20 ms is far below the allowed error."""
    plan = BenchPlan(pp=(512,), tg=(100,), depths=(0, 256), concurrency=(1,), cached_depths=(), runs=3, warmups=0)
    return measure_mock(plan)


@pytest.fixture(scope="module")
def brief():
    """A short benchmark for checks that do not depend on the clock."""
    plan = BenchPlan(pp=(64,), tg=(8,), depths=(0, 32), concurrency=(1,), cached_depths=(), runs=3, warmups=0)
    with mock_server(pp_tok_s=4000.0, tg_tok_s=400.0) as url:
        served, roof = ServedModel(spec=PRESETS["gpt-oss-20b"]), find_roof("NVIDIA H200")
        return measure(url, plan=plan, served=served, roof=roof)


@pytest.fixture(scope="module")
def concurrent():
    """Even longer, because concurrent streams start milliseconds apart."""
    plan = BenchPlan(pp=(800,), tg=(100,), depths=(0,), concurrency=(4,), cached_depths=(), runs=3)
    return measure_mock(plan).rows[0]


@pytest.mark.slow
@pytest.mark.parametrize("row", [0, 1])
def test_single_stream_is_measured_within_two_percent(bench, row):
    series = bench.rows[row].series
    assert series["pp_tok_s"].median == pytest.approx(PP_TOK_S, rel=ERROR)
    assert series["tg_tok_s"].median == pytest.approx(TG_TOK_S, rel=ERROR)
    assert series["tpot_ms"].median == pytest.approx(1e3 / TG_TOK_S, rel=ERROR)


@pytest.mark.slow
def test_concurrent_streams_are_measured_within_two_percent(concurrent):
    assert concurrent.series["tg_tok_s"].median == pytest.approx(4 * TG_TOK_S, rel=ERROR)
    assert concurrent.series["pp_tok_s"].median == pytest.approx(4 * PP_TOK_S, rel=ERROR)
    assert len(concurrent.series["tg_tok_s"].values) == 3 and len(concurrent.series["ttft_ms"].values) == 12


def test_figures_have_bytes_and_shares(brief):
    share = brief.rows[0].shares["tg_tok_s"]
    assert share.bytes_a_token == pytest.approx(3.73e9, rel=0.02)  # with the KV cache
    assert share.share == pytest.approx(brief.rows[0].series["tg_tok_s"].median / share.ceiling_tok_s)
    assert share.device == "NVIDIA H200" and share.of == "measured read"
    assert brief.rows[0].shares["pp_tok_s"].share < 1


def test_raw_samples_are_kept(brief):
    content = json.loads(json.dumps(brief.as_dict()))
    assert len(content["rows"]) == 2 and content["plan"]["pp"] == [64]
    batches = content["rows"][-1]["batches"]
    assert len(batches) == 3 and all(len(sample["token_times_s"]) == 8 for [sample] in batches)
    assert not brief.failures


@pytest.mark.slow
def test_cached_context_is_a_separate_phase():
    with mock_server(pp_tok_s=1000.0, tg_tok_s=500.0, prefix_caching=True) as url:
        plan = BenchPlan(pp=(100,), tg=(4,), depths=(0,), concurrency=(1,), cached_depths=(400,), runs=2)
        _, context, follow_up = measure(url, plan=plan, pid=os.getpid()).rows
    assert (context.phase, follow_up.phase) == (CONTEXT, FOLLOW_UP)
    assert context.series["ttft_ms"].median > 350
    assert follow_up.series["ttft_ms"].median < 200
    assert follow_up.batches[0][0].cached_tokens > 350


@pytest.mark.slow
def test_workloads_beyond_the_context_are_left_out():
    with mock_server(max_context=600) as url:
        plan = BenchPlan(
            pp=(512,), tg=(8,), depths=(0, 4096), concurrency=(1,), cached_depths=(), runs=1, warmups=0
        )
        result = measure(url, plan=plan)
    assert [row.workload.depth for row in result.rows] == [0]
    assert "4096" in result.left_out[0]


def test_slow_workload_runs_less_often_and_the_result_says_so():
    with mock_server(pp_tok_s=50_000.0, tg_tok_s=2000.0) as url:
        plan = BenchPlan(pp=(64,), tg=(4,), depths=(0,), concurrency=(1,), cached_depths=(), runs=5, enough_s=0.0)
        result = measure(url, plan=plan)
    assert len(result.rows[0].batches) == 3 and result.left_out == [
        "pp64 tg4: 3 runs instead of 5, because they took over 0 s"
    ]


def measure_short_prompt(**settings):
    """Measures prompts of 150 tokens, which take 33 ms, on a server that is asked for its latency in vain."""
    plan = BenchPlan(pp=(150,), tg=(2,), depths=(0,), concurrency=(1,), cached_depths=(), runs=3)
    with mock_server(pp_tok_s=4500.0, tg_tok_s=1000.0, model_s=0.022, **settings) as url:
        return measure(url, plan=plan)


@pytest.mark.slow
def test_delayed_pings_do_not_make_prompts_look_faster():
    """A server of 4,500 tok/s read as 10,438: the mean of three pings, 21.9 ms, was subtracted from 34 ms."""
    result = measure_short_prompt(slow_models=2 + 3)  # the first two are questions for the model
    assert result.rows[0].series["pp_tok_s"].median < 1.1 * 4500.0  # a busy machine may read less
    assert result.latency_s < 0.01 and not result.doubts


def test_prompt_speed_is_doubtful_if_much_latency_was_subtracted():
    result = measure_short_prompt(slow_models=100)
    assert len(result.doubts) == 1 and result.doubts[0].startswith("pp150 tg2: the latency of 2")
    assert json.loads(json.dumps(result.as_dict()))["rows"][0]["doubts"]


def test_temperature_is_sent_only_if_it_is_given(monkeypatch):
    sent = []

    async def stream(self, prompt, **fields):
        sent.append(fields)
        return Exchange(start_s=0.0, end_s=1.0)

    monkeypatch.setattr("firesteel.lab.client.load_client.LoadClient.stream", stream)
    workload = BenchWorkload(pp=1, tg=1)
    for temperature in (None, 0.0):
        meter = Meter(plan=BenchPlan(temperature=temperature), served=None, roof=None, progress=lambda *_: None)
        asyncio.run(meter._ask(LoadClient("http://127.0.0.1:1", model="x"), [], workload))
    assert "temperature" not in sent[0] and sent[1]["temperature"] == 0.0
