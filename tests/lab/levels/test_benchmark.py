"""Level 4: what is measured, against which bytes, and what is kept of it."""

import json
from dataclasses import replace

import pytest

from firesteel.device import find_device
from firesteel.lab.bench.bench import BenchBroken
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.client.api import Api
from firesteel.lab.levels.benchmark import choose_plan, find_formats, find_served, run_benchmark
from firesteel.lab.servers.supervisor import ServerFailed, Supervised
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import Order
from firesteel.measure.record import Record
from tests.lab.mock import mock_server


@pytest.fixture
def small(monkeypatch):
    plan = BenchPlan(pp=(64,), tg=(8,), depths=(0,), concurrency=(1,), cached_depths=(), runs=2, warmups=0)
    monkeypatch.setattr("firesteel.lab.levels.benchmark.choose_plan", lambda order: plan)


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


@pytest.mark.parametrize("way", ["speaks-sglang", "speaks-llamacpp"])
def test_server_that_gives_no_ids_of_tokens_is_measured_by_its_usage(small, fake, tmp_path, way):
    with Supervised(fake(way), tmp_path) as server:
        target = Target(api=Api.of(server.command.url), kind="other", folder=tmp_path, model="x", server=server)
        result = run_benchmark(target, Order(quick=True), find_device("cpu"))
    assert result.passed, result.reason
    [[first], _] = result.figures["bench"]["rows"][0]["batches"]
    assert (first["counted_by"], first["output_tokens"]) == ("usage", 8)


@pytest.fixture
def lose(fake, tmp_path, monkeypatch):
    """lose("hangs-at-8"): how level 4 ends where the server is lost at that request; calibration takes four."""
    plan = BenchPlan(pp=(8, 16, 32), tg=(4,), depths=(0,), concurrency=(1,), cached_depths=(), runs=2, warmups=0)
    monkeypatch.setattr("firesteel.lab.levels.benchmark.choose_plan", lambda order: plan)

    def run(way, is_ours=True):
        with Supervised(fake(way), tmp_path) as server:
            api = replace(Api.of(server.command.url), timeout_s=0.5)
            target = Target(api=api, kind="other", folder=tmp_path, model="x", server=server if is_ours else None)
            with pytest.raises(ServerFailed if is_ours else BenchBroken) as caught:
                run_benchmark(target, Order(quick=True), find_device("cpu"))
            assert (server.stopped is not None) == is_ours
        return caught.value

    return run


@pytest.mark.parametrize(
    ("way", "kind", "words"),
    [
        ("hangs-at-8", "hang", "hangs at benchmark, pp16 tg4: no answer for 0 s"),
        ("dies-at-8", "signal", "SIGKILL) at benchmark, pp16 tg4"),
        pytest.param(
            "breaks-off-at-8", "unreachable", "runs but broke a connection: pp16 tg4", marks=pytest.mark.slow
        ),
    ],
)
def test_server_that_is_lost_is_diagnosed_at_once_and_what_was_measured_is_kept(lose, way, kind, words):
    error = lose(way)
    assert error.diagnosis.kind == kind and words in str(error) and error.bundle.is_dir()
    kept = error.__cause__.result
    assert [row.name for row in kept.rows] == ["pp8 tg4"] and len(kept.rows[0].batches) == 2
    assert kept.left_out[-1].startswith("2 workloads, pp16 tg4 and those after it") and kept.seconds > 0


def test_server_of_others_that_hangs_ends_the_benchmark_and_is_left_alone(lose):
    error = lose("hangs-at-8", is_ours=False)
    assert "pp16 tg4: /v1/chat/completions: no answer" in str(error) and len(error.result.rows) == 1


def test_server_that_hangs_before_the_first_workload_is_not_asked_on(lose):
    assert "hangs at benchmark: no answer" in str(lose("hangs-at-4"))


PLAIN = {"mxfp4_layers": "", "activation": "bf16", "kv": "bfloat16"}


def test_bytes_follow_what_the_engine_holds_and_not_what_its_flags_say():
    """FIRESTEEL_MXFP4_LAYERS, which is no flag, was once charged as BF16."""
    plain = find_served("kindling", PLAIN)
    assert plain.spec.mxfp4_layers == () and plain.kv == "bf16"
    served = find_served("kindling", {"mxfp4_layers": "qkv,o,lm_head", "kv": "float8_e4m3fn"})
    assert served.spec.mxfp4_layers == ("qkv", "o", "lm_head") and served.kv == "fp8"


@pytest.mark.parametrize(
    ("kind", "flags", "kv"),
    [
        ("vllm", (), "bf16"), ("sglang", ("--kv-cache-dtype", "fp8_e5m2"), "fp8"),
        ("vllm", ("--quantization=awq",), None),
        ("llamacpp", (), None), ("other", (), None),
    ],
)  # fmt: skip
def test_of_other_engines_bytes_are_claimed_where_their_flags_tell_them(tmp_path, kind, flags, kv):
    api = Api.of("http://127.0.0.1:1")
    ours = Target(api=api, kind=kind, folder=tmp_path, model="gpt-oss-20b", server=object())
    served = find_served("gpt-oss-20b", find_formats({}, ours, Order(flags=flags)))
    assert (served and served.kv) == kv and (served is None or served.spec.mxfp4_layers == ())
    assert find_formats({}, replace(ours, server=None), Order(flags=flags)) is None


@pytest.mark.parametrize("formats", [None, {}, "bf16"])
def test_of_a_server_that_states_no_formats_no_bytes_are_claimed(formats):
    assert find_served("kindling", formats) is None


def test_public_models_are_known_by_name_and_others_are_not():
    assert find_served("openai/gpt-oss-120b", PLAIN).spec.num_experts == 128
    assert find_served("some/other", PLAIN) is None


def test_quick_plan_is_smaller():
    assert len(choose_plan(Order(quick=True)).workloads()) < len(choose_plan(Order()).workloads())
