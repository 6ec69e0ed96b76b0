"""Whole runs against servers that fail as they are told to: the verdict, result.json, and nothing left behind."""

import json
import sys
from pathlib import Path

import pytest

from firesteel.device import find_device
from firesteel.errors import UserError
from firesteel.lab import run as module
from firesteel.lab.report.report import read_result
from firesteel.lab.run import Run, run_lab
from firesteel.lab.servers.supervisor import Supervised
from firesteel.lab.spec import Order

FAKE = Path(__file__).parent / "fake_server.py"


def test_result_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """Written in place, a full disk left the earlier one empty."""
    written = []
    monkeypatch.setattr(module, "write_whole", lambda path, content: written.append((path, content["passed"])))
    order = Order(engine=f"{sys.executable} {FAKE} {{port}} exit", model="fake", level="1", ready_s=20.0)
    run_lab(order, tmp_path, Silent())
    assert written == [(tmp_path / "result.json", False)]


class Silent:
    def __init__(self):
        self.words = []

    def begin(self, level):
        self.words.append(f"begin {level}")

    def tell(self, words):
        self.words.append(words)

    def end(self, result):
        self.words.append(f"end {result.level}")


@pytest.fixture
def lab(tmp_path):
    """lab("hangs", mode="stress"): the result of a run against such a server."""

    def run(way="well", **fields):
        engine = f"{sys.executable} {FAKE} {{port}} {way}"
        defaults = {"engine": engine, "model": "fake", "quick": True, "ready_s": 20.0, "answer_s": 20.0}
        result = run_lab(Order(**{"mode": "stress", **defaults, **fields}), tmp_path, Silent())
        assert read_result(tmp_path) == json.loads(json.dumps(result, default=str))
        return result

    return run


def test_server_that_behaves_passes_and_the_result_says_with_what(lab):
    result = lab()
    assert result["passed"], [level["reason"] for level in result["levels"]]
    assert [level["level"] for level in result["levels"]] == ["1", "1.5", "3"]
    assert result["levels"][1]["was_run"] is False and "no rules" in result["levels"][1]["reason"]
    assert result["levels"][2]["figures"]["left_early"] == 4 and result["levels"][2]["figures"]["sequential"] == 20
    assert result["shutdown"]["is_clean"] and result["engine"]["startup_s"] > 0
    assert result["order"]["quick"] and any("40 requests" in line for line in result["reductions"])
    assert len(result["memory"]["seconds"]) == len(result["memory"]["host_bytes"]) > 0
    assert result["surroundings"]["versions"]["torch"] and Path(result["engine"]["log"]).is_file()


def test_key_in_a_command_is_sent_and_written_down_nowhere(lab, tmp_path, monkeypatch):
    """It was in the title of the report, while every request was answered 401 for want of it."""
    monkeypatch.delenv("FIRESTEEL_API_KEY", raising=False)
    result = lab("well --api-key sk-hunter2", level="1")
    assert result["passed"], [level["reason"] for level in result["levels"]]
    assert result["engine"]["name"].endswith("well --api-key (hidden)")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert "report.html" in {path.name for path in written}
    assert not [path for path in written if "hunter2" in path.read_text() or "hunter2" in path.name]


def test_server_that_dies_at_its_50th_request_fails_that_level_with_a_bundle(lab):
    result = lab("dies-at-50")
    smoke, path, stress = result["levels"]
    assert smoke["passed"] and path["passed"] and not stress["passed"] and not result["passed"]
    assert stress["figures"]["diagnosis"]["kind"] == "signal" and "signal 9 (SIGKILL)" in stress["reason"]
    assert (Path(stress["figures"]["bundle"]) / "report.json").is_file()


def test_server_that_dies_while_it_is_measured_has_its_diagnosis(lab):
    levels = {level["level"]: level for level in lab("dies-at-50", mode="benchmark")["levels"]}
    assert levels["1"]["passed"] and "signal 9 (SIGKILL) at benchmark, pp" in levels["4"]["reason"]
    assert len(levels["4"]["figures"]["bench"]["rows"]) == 2 and levels["4"]["figures"]["bundle"]
    assert levels["5"]["reason"] == levels["6"]["reason"] == "not run: the server is gone"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "kind", "words"),
    [
        ("answers-500", "http-error", "answered 500"),
        ("answers-garbage", "garbage", "not JSON"),
        ("loses-its-worker", "illegal-instruction", "says its log; /v1/chat/completions was answered 500"),
        ("hangs", "hang", "hangs at the first answer: no answer for 1 s"),
        ("exit", "exit", "exit code 1 at start-up"),
        ("never-ready", "never-ready", "never became ready"),
    ],
)
def test_failure_is_the_reason_of_its_level_and_the_rest_is_not_run(way, kind, words, lab):
    result = lab(way, answer_s=1.0, ready_s=2.0 if way == "never-ready" else 20.0)
    first, *rest = result["levels"]
    assert not first["passed"] and words in first["reason"] and first["figures"]["diagnosis"]["kind"] == kind
    assert [(one["passed"], one["was_run"], one["reason"]) for one in rest] == [
        (False, False, "not run: the server is gone")
    ] * 2
    assert Path(first["figures"]["bundle"]).is_dir() and not result["passed"]


def test_run_that_is_interrupted_has_not_passed_and_says_where_it_ended(lab, tmp_path, monkeypatch):
    def leave(*_):
        raise SystemExit(143)

    monkeypatch.setattr("firesteel.lab.run.check_stress", leave)
    with pytest.raises(SystemExit):
        lab()
    found = read_result(tmp_path)
    assert not found["passed"] and found["unfinished"] == ["3"] and found["shutdown"]["is_clean"]
    assert "level 3 was not reached" in (tmp_path / "report.md").read_text()


def test_likelihoods_that_are_no_numbers_fail_the_smoke_test(lab):
    [smoke] = lab("says-nan", level="1")["levels"]
    assert not smoke["passed"] and "NaN or Inf" in smoke["reason"]


def test_zombies_fail_the_stress_test(lab):
    result = lab("makes-zombie")
    assert not result["passed"] and "zombies" in result["levels"][-1]["reason"]


def test_server_that_leaves_an_orphan_passes_no_run(lab):
    result = lab("leaves-orphan", level="1", grace_s=1.0)
    [smoke] = result["levels"]
    assert not smoke["passed"] and not result["shutdown"]["is_clean"] and not result["passed"]
    assert "did not stop cleanly" in smoke["reason"] and "behind" in smoke["reason"]


def test_server_that_runs_already_is_asked_and_left_alone(lab, fake, tmp_path):
    with Supervised(fake(), tmp_path / "other") as server:
        result = lab(url=server.command.url)
        assert result["passed"] and result["shutdown"] is None and server.exit_code is None
    assert "not seen" in result["levels"][0]["reason"]


def test_server_that_runs_already_is_not_held_to_the_built_in_model(lab, fake, tmp_path):
    with Supervised(fake(), tmp_path / "other") as server:
        result = lab(url=server.command.url, model="kindling", mode="verify")
    assert "not judged: fake is no checkpoint" in json.dumps(result["levels"][-1])


def test_reference_that_is_not_there_is_not_the_servers_failure(lab):
    result = lab(mode="verify", reference_url="http://127.0.0.1:9")
    level = result["levels"][-1]
    assert level["level"] == "2" and level["passed"] and not level["was_run"] and result["shutdown"]["is_clean"]
    assert "not judged: the reference, http://127.0.0.1:9, does not answer" in level["reason"]


@pytest.mark.parametrize(
    ("flags", "expected"), [((), True), (("--device=cpu",), False), (("--device=cuda",), True)]
)
def test_a_profiler_is_asked_where_the_server_computes_on_a_gpu(flags, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    run = Run(order=Order(flags=flags), folder=tmp_path, watcher=Silent(), device=find_device("cpu"))
    assert run._can_cross_check() is expected


def test_command_without_a_port_is_refused(lab):
    with pytest.raises(UserError, match=r"\{port\}"):
        lab(engine="my-server")


def test_server_that_is_not_there_fails_in_words_and_leaves_a_report(lab, tmp_path):
    first, *rest = lab(url="http://127.0.0.1:9")["levels"]
    assert not first["passed"] and "127.0.0.1:9" in first["reason"] and "is it running" in first["reason"]
    assert [one["reason"] for one in rest] == ["not run: the server is gone"] * 2
    assert "is it running" in (tmp_path / "report.md").read_text()


def test_program_that_is_not_installed_is_named_with_the_cure(lab):
    first = lab(engine="no-such-program --port {port}")["levels"][0]
    assert "no-such-program cannot be started" in first["reason"] and "PATH" in first["reason"]
