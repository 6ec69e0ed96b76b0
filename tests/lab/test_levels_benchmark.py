"""Level 4: what is measured, against which bytes, and what is kept of it."""

import json

import pytest

from firesteel.device import find_device
from firesteel.lab.api import Api
from firesteel.lab.levels_benchmark import choose_plan, find_served, run_benchmark
from firesteel.lab.mock import mock_server
from firesteel.lab.order import Order
from firesteel.lab.plan import BenchPlan
from firesteel.lab.target import Target
from firesteel.measure.record import Record


@pytest.fixture
def small(monkeypatch):
    plan = BenchPlan(pp=(64,), tg=(8,), depths=(0,), concurrency=(1,), cached_depths=(), runs=2, warmups=0)
    monkeypatch.setattr("firesteel.lab.levels_benchmark.choose_plan", lambda order: plan)


@pytest.mark.slow
def test_speeds_of_a_known_server_are_measured_and_recorded(small, tmp_path):
    with mock_server() as url:
        target = Target(api=Api.of(url), kind="other", folder=tmp_path, model="kindling")
        target.greet()
        result = run_benchmark(target, Order(quick=True), find_device("cpu"))
    assert result.passed and "tg" in result.reason
    [row] = result.figures["bench"]["rows"]
    assert len(row["series"]["tg_tok_s"]["values"]) == 2 and json.dumps(result.figures)
    records = [Record.load(path) for path in (tmp_path / "records").iterdir()]
    assert {record.unit for record in records} == {"tok/s"} and len(records) == 2


PLAIN = {"mxfp4_layers": "", "activation": "bf16", "kv": "bfloat16"}


def test_bytes_follow_what_the_engine_holds_and_not_what_its_flags_say():
    """FIRESTEEL_MXFP4_LAYERS, which is no flag, was once charged as BF16."""
    plain = find_served("kindling", PLAIN)
    assert plain.spec.mxfp4_layers == () and plain.kv == "bf16"
    served = find_served("kindling", {"mxfp4_layers": "qkv,o,lm_head", "kv": "float8_e4m3fn"})
    assert served.spec.mxfp4_layers == ("qkv", "o", "lm_head") and served.kv == "fp8"


@pytest.mark.parametrize("formats", [None, {}, "bf16"])
def test_of_a_server_that_states_no_formats_no_bytes_are_claimed(formats):
    assert find_served("kindling", formats) is None


def test_public_models_are_known_by_name_and_others_are_not():
    assert find_served("openai/gpt-oss-120b", PLAIN).spec.num_experts == 128
    assert find_served("some/other", PLAIN) is None


def test_quick_plan_is_smaller():
    assert len(choose_plan(Order(quick=True)).workloads()) < len(choose_plan(Order()).workloads())
