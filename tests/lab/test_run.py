"""Whole runs with servers that fail in a given way: the verdict, result.json, and no process left behind."""

import json
import sys
from pathlib import Path

import pytest

from firesteel.device import find_device
from firesteel.errors import UserError
from firesteel.lab import run as module
from firesteel.lab.level import KERNEL_PATH, STRESS
from firesteel.lab.level_result import LevelResult
from firesteel.lab.levels.table import RUN
from firesteel.lab.result import read_result
from firesteel.lab.run import LabRun, run_lab
from firesteel.lab.servers.supervisor import SupervisedServer
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict
from tests.lab.observers import RecordingObserver

FAKE = Path(__file__).parent / "fake_server.py"


def test_result_file_is_complete_or_absent(tmp_path, monkeypatch):
    """Written in place, a full disk left the earlier one empty."""
    written = []
    monkeypatch.setattr(
        module, "write_atomically", lambda path, content: written.append((path, content["verdict"]))
    )
    spec = LabSpec(engine=f"{sys.executable} {FAKE} {{port}} exit", model="fake", level="1", ready_s=20.0)
    run_lab(spec, tmp_path, RecordingObserver())
    assert written == [(tmp_path / "result.json", "failed")]


@pytest.fixture
def lab(tmp_path):
    """lab("hangs", mode="stress"): the result of a run with such a server."""

    def run(way="well", **fields):
        engine = f"{sys.executable} {FAKE} {{port}} {way}"
        defaults = {"engine": engine, "model": "fake", "quick": True, "ready_s": 20.0, "answer_s": 20.0}
        result = run_lab(LabSpec(**{"mode": "stress", **defaults, **fields}), tmp_path, RecordingObserver())
        written = json.loads((tmp_path / "result.json").read_text())
        assert written == json.loads(json.dumps(result.as_dict(), default=str))
        assert [level.reason for level in read_result(tmp_path).levels] == [level.reason for level in result.levels]
        return result

    return run


def test_healthy_server_of_unknown_kernels_is_unproven_and_the_result_is_complete(lab):
    result = lab()
    assert [level.level.number for level in result.levels] == ["1", "1.5", "3"]
    assert result.levels[0].passed and result.levels[2].passed, [level.reason for level in result.levels]
    assert result.levels[1].verdict is Verdict.UNPROVEN and "no rules" in result.levels[1].reason
    assert result.levels[2].facts["left_early"] == 4 and result.levels[2].facts["sequential"] == 20
    assert result.verdict is Verdict.UNPROVEN and result.unjudged == (KERNEL_PATH,)
    assert result.shutdown.is_clean and result.engine.startup_s > 0
    assert result.spec.quick and any("40 requests" in line for line in result.reductions)
    assert len(result.memory.seconds) == len(result.memory.host_bytes) > 0
    assert result.surroundings.versions["torch"] and Path(result.engine.log).is_file()
    assert result.engine.interpreter == sys.executable and result.engine.packages["torch"]
    assert result.engine.environment["PYTHONUNBUFFERED"] == "1" and result.engine.container is None


def test_key_in_a_command_is_used_and_never_written(lab, tmp_path, monkeypatch):
    """It was in the title of the report, while every request was answered 401 for lack of it."""
    monkeypatch.delenv("FIRESTEEL_API_KEY", raising=False)
    result = lab("well --api-key sk-hunter2", level="1")
    assert result.passed, [level.reason for level in result.levels]
    assert result.engine.name.endswith("well --api-key (hidden)")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert "report.html" in {path.name for path in written}
    assert not [path for path in written if "hunter2" in path.read_text() or "hunter2" in path.name]


def test_server_that_dies_fails_the_level_with_a_bundle(lab):
    result = lab("dies-at-50")
    smoke, path, stress = result.levels
    assert smoke.passed and not path.failed and stress.failed and result.verdict is Verdict.FAILED
    assert stress.diagnosis.kind == "signal" and "signal 9 (SIGKILL)" in stress.reason
    assert (Path(stress.bundle) / "report.json").is_file()


def test_server_that_dies_during_the_benchmark_is_diagnosed(lab):
    levels = {level.level.number: level for level in lab("dies-at-50", mode="benchmark").levels}
    assert levels["1"].passed and "signal 9 (SIGKILL) at benchmark, pp" in levels["4"].reason
    assert len(levels["4"].bench.rows) == 2 and levels["4"].bundle
    assert levels["5"].reason == levels["6"].reason == "not run: the server is gone"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "kind", "words"),
    [
        ("answers-500", "http-error", "answered 500"),
        ("answers-garbage", "garbage", "not JSON"),
        ("loses-its-worker", "illegal-instruction", "according to its log; /v1/chat/completions was answered 500"),
        ("hangs", "hang", "hangs at the first answer: no answer for 1 s"),
        ("exit", "exit", "exited with code 1 at start-up"),
        ("never-ready", "never-ready", "never became ready"),
    ],
)
def test_failure_is_the_reason_of_its_level_and_later_levels_are_not_run(way, kind, words, lab):
    result = lab(way, answer_s=1.0, ready_s=2.0 if way == "never-ready" else 20.0)
    first, *rest = result.levels
    assert not first.passed and words in first.reason and first.diagnosis.kind == kind
    not_run = (Verdict.UNPROVEN, "not run: the server is gone")
    assert [(level.verdict, level.reason) for level in rest] == [not_run] * 2
    assert Path(first.bundle).is_dir() and not result.passed


def test_interrupted_run_has_not_passed_and_says_where_it_ended(lab, tmp_path, monkeypatch):
    def leave(*_):
        raise SystemExit(143)

    monkeypatch.setitem(RUN, STRESS, leave)
    with pytest.raises(SystemExit):
        lab()
    result = read_result(tmp_path)
    assert result.verdict is Verdict.UNPROVEN and result.unfinished == (STRESS,) and result.shutdown.is_clean
    assert "level 3 was not reached" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("keeps_going", [False, True])
def test_failed_kernel_path_ends_the_run_before_stress_unless_told_otherwise(lab, monkeypatch, keeps_going):
    """It went on to measure for minutes what did not count."""
    failed = LevelResult(level=KERNEL_PATH, verdict=Verdict.FAILED, reason="marlin ran")
    passed = LevelResult(level=STRESS, verdict=Verdict.PASSED, reason="200 of 200")
    monkeypatch.setitem(RUN, KERNEL_PATH, lambda context: failed)
    monkeypatch.setitem(RUN, STRESS, lambda context: passed)
    result = lab(keep_going=keeps_going)
    stress = result.levels[-1]
    assert result.verdict is Verdict.FAILED and stress.passed == keeps_going and stress.valid != keeps_going
    assert ("not run: the kernel path (level 1.5) failed; --keep-going" in stress.reason) != keeps_going


def test_nan_fails_the_smoke_level(lab):
    [smoke] = lab("says-nan", level="1").levels
    assert not smoke.passed and "NaN or Inf" in smoke.reason


def test_zombies_fail_the_stress_level(lab):
    result = lab("makes-zombie")
    assert not result.passed and "zombies" in result.levels[-1].reason


def test_orphan_fails_the_run(lab):
    result = lab("leaves-orphan", level="1", grace_s=1.0)
    [smoke] = result.levels
    assert not smoke.passed and not result.shutdown.is_clean and not result.passed
    assert "did not stop cleanly" in smoke.reason and "behind" in smoke.reason


def test_server_that_was_running_already_is_tested_and_left_running(lab, fake, tmp_path):
    with SupervisedServer(fake(), tmp_path / "other") as server:
        result = lab(url=server.command.url)
        assert result.shutdown is None and server.exit_code is None
    smoke, _, stress = result.levels
    assert smoke.passed and stress.passed and "not visible" in smoke.reason
    unseen = [row.check for level in (smoke, stress) for row in level.checks if row.verdict is Verdict.UNPROVEN]
    assert unseen == ["memory", "processes", "memory"]


def test_running_server_is_titled_by_its_engine_and_address(lab, fake, tmp_path):
    """The title was the address alone."""
    with SupervisedServer(fake(), tmp_path / "other") as server:
        result = lab(url=server.command.url, engine="vllm", level="1.5")
    assert result.engine.name == f"vllm at {server.command.url}" and result.engine.kind == "vllm"
    assert "--engine" not in result.levels[0].reason


def test_engine_of_a_server_that_failed_to_start_is_named(lab):
    assert "exit" in lab("exit", level="1").engine.name


def test_running_server_is_not_compared_with_the_default_model(lab, fake, tmp_path):
    with SupervisedServer(fake(), tmp_path / "other") as server:
        result = lab(url=server.command.url, model="kindling", mode="verify")
    assert "not judged: fake is not a checkpoint" in result.levels[-1].reason


def test_missing_reference_does_not_fail_the_server(lab):
    result = lab(mode="verify", reference_url="http://127.0.0.1:9")
    level = result.levels[-1]
    assert level.level.number == "2" and level.verdict is Verdict.UNPROVEN and result.shutdown.is_clean
    assert "not judged: the reference, http://127.0.0.1:9, does not answer" in level.reason


@pytest.mark.parametrize(
    ("flags", "expected"), [((), True), (("--device=cpu",), False), (("--device=cuda",), True)]
)
def test_profiler_is_used_if_the_server_computes_on_a_gpu(flags, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    run = LabRun(
        spec=LabSpec(flags=flags), folder=tmp_path, observer=RecordingObserver(), device=find_device("cpu")
    )
    assert run._can_cross_check() is expected


def test_command_without_a_port_is_refused(lab):
    with pytest.raises(UserError, match=r"\{port\}"):
        lab(engine="my-server")


def test_missing_server_fails_with_a_cure_and_a_report(lab, tmp_path):
    first, *rest = lab(url="http://127.0.0.1:9").levels
    assert not first.passed and "127.0.0.1:9" in first.reason and "is running and its address" in first.reason
    assert [level.reason for level in rest] == ["not run: the server is gone"] * 2
    assert "check that it is running" in (tmp_path / "report.md").read_text()


def test_missing_program_is_named_with_the_cure(lab):
    first = lab(engine="no-such-program --port {port}").levels[0]
    assert "no-such-program cannot be started" in first.reason and "PATH" in first.reason
