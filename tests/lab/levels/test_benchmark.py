"""Level 4: what is measured, the bytes it is compared with, and what is kept."""

import json
from dataclasses import replace

import pytest

from firesteel.lab.bench.bench import BenchBroken
from firesteel.lab.client.api import Api
from firesteel.lab.levels.benchmark import run_benchmark
from firesteel.lab.servers.supervisor import ServerFailed, SupervisedServer
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import LabSpec
from firesteel.measure.record import Record
from tests.lab.contexts import make_context
from tests.lab.mock import mock_server

SMALL = LabSpec(pp=(64,), tg=(8,), depths=(0,), streams=(1,), runs=2, warmups=0)


@pytest.mark.slow
def test_speeds_of_a_known_server_are_measured_and_recorded(tmp_path):
    with mock_server() as url:
        target = Target(api=Api.of(url), kind="other", folder=tmp_path, model="kindling")
        target.identify()
        result = run_benchmark(make_context(target, SMALL))
    assert result.passed and "tg" in result.reason
    [row] = result.bench.rows
    assert len(row.series["tg_tok_s"].values) == 2 and json.dumps(result.as_dict())
    records = [Record.load(path) for path in (tmp_path / "records").iterdir()]
    assert {record.unit for record in records} == {"tok/s"} and len(records) == 2


@pytest.mark.parametrize("way", ["speaks-sglang", "speaks-llamacpp"])
def test_server_without_token_ids_is_measured_by_its_usage(fake, tmp_path, way):
    with SupervisedServer(fake(way), tmp_path) as server:
        target = Target(api=Api.of(server.command.url), kind="other", folder=tmp_path, model="x", server=server)
        result = run_benchmark(make_context(target, SMALL))
    assert result.passed, result.reason
    [[first], _] = result.bench.rows[0].batches
    assert (first.counted_by, first.output_tokens) == ("usage", 8)


@pytest.fixture
def lose(fake, tmp_path):
    """lose("hangs-at-8"): the error of level 4 if the server is lost at that request; calibration takes four."""
    spec = LabSpec(pp=(8, 16, 32), tg=(4,), depths=(0,), streams=(1,), runs=2, warmups=0)

    def run(way, is_ours=True):
        with SupervisedServer(fake(way), tmp_path) as server:
            api = replace(Api.of(server.command.url), timeout_s=0.5)
            target = Target(api=api, kind="other", folder=tmp_path, model="x", server=server if is_ours else None)
            with pytest.raises(ServerFailed if is_ours else BenchBroken) as caught:
                run_benchmark(make_context(target, spec))
            assert (server.exit is not None) == is_ours
        return caught.value

    return run


@pytest.mark.parametrize(
    ("way", "kind", "words"),
    [
        ("hangs-at-8", "hang", "hangs at benchmark, pp16 tg4: no answer for 0 s"),
        ("dies-at-8", "signal", "SIGKILL) at benchmark, pp16 tg4"),
        pytest.param(
            "breaks-off-at-8", "unreachable", "is running but broke a connection: pp16 tg4", marks=pytest.mark.slow
        ),
    ],
)
def test_lost_server_is_diagnosed_at_once_and_earlier_workloads_are_kept(lose, way, kind, words):
    error = lose(way)
    assert error.diagnosis.kind == kind and words in str(error) and error.bundle.is_dir()
    kept = error.__cause__.result
    assert [row.name for row in kept.rows] == ["pp8 tg4"] and len(kept.rows[0].batches) == 2
    assert kept.left_out[-1].startswith("2 workloads, pp16 tg4 and those after it") and kept.seconds > 0


def test_hanging_server_that_the_lab_did_not_start_is_left_alone(lose):
    error = lose("hangs-at-8", is_ours=False)
    assert "pp16 tg4: /v1/chat/completions: no answer" in str(error) and len(error.result.rows) == 1


def test_server_that_hangs_before_the_first_workload_gets_no_more_requests(lose):
    assert "hangs at benchmark: no answer" in str(lose("hangs-at-4"))
