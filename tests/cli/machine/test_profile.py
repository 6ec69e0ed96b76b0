"""The verb `profile`: tables and JSON of the built-in engine and of a trace."""

import json

import pytest

from firesteel.lab.profile import recording
from tests.lab.profile.profiling_server import profiling_server


def test_built_in_engine_on_a_cpu(run, checkpoint, tmp_path):
    words = [
        "profile",
        "--model",
        str(checkpoint),
        "--device",
        "cpu",
        "--context",
        "8",
        "--steps",
        "3",
        "--no-front",
    ]
    result = run(*words, "--json", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    profile = json.loads(result.stdout)
    assert profile["sum_ms"] == pytest.approx(profile["step_ms"])
    assert {"experts", "dense", "attention", "gaps"} <= {row["category"] for row in profile["categories"]}
    assert profile["layers"][-1]["layer"] == "outside layers" and profile["host"][0]["stage"] == "scheduler"
    written = json.loads((tmp_path / "profile.json").read_text())
    surroundings = written.pop("surroundings")
    assert written == profile and surroundings["device"] == "CPU" and surroundings["versions"]["torch"]
    assert "By layer" in (tmp_path / "report.html").read_text()


def test_trace_of_another_engine(run, tmp_path):
    events = [
        {"cat": "kernel", "name": name, "ts": 10 * number, "dur": 5}
        for number, name in enumerate(["fused_moe_kernel", "nvjet_gemm", "argmax"] * 2)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    result = run("profile", str(path))
    assert result.exit_code == 0 and "over 2 steps" in result.stdout and "fused_moe_kernel" in result.stdout
    profile = json.loads(run("profile", str(path), "--model", "gpt-oss-20b", "--steps", "1", "--json").stdout)
    assert profile["steps"] == 1 and profile["categories"][0]["gb_s"] is not None and len(profile["layers"]) == 25


@pytest.fixture
def two_traces(tmp_path):
    """Paths of an earlier and of a later trace, in which the experts take half as long."""
    paths = []
    for number, us in enumerate((6, 3)):
        names = ["fused_moe_kernel", "nvjet_gemm", "argmax"] * 2
        events = [
            {"cat": "kernel", "name": name, "ts": 10e5 * place, "dur": us if "moe" in name else 2}
            for place, name in enumerate(names)
        ]
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps({"traceEvents": events}))
    return paths


def test_difference_from_an_earlier_trace_or_profile_is_shown(run, two_traces, tmp_path):
    before, after = map(str, two_traces)
    told = json.loads(run("profile", after, "--against", before, "--json").stdout)
    experts = next(row for row in told["categories"] if row["name"] == "experts")
    assert (experts["before_ms"], experts["after_ms"], experts["change_ms"]) == (0.006, 0.003, -0.003)
    assert run("profile", before, "--out", str(tmp_path / "out")).exit_code == 0
    result = run("profile", after, "--against", str(tmp_path / "out" / "profile.json"))
    assert result.exit_code == 0 and "-0.003" in result.stdout and "the largest change is in" in result.stdout


def test_window_of_a_trace(run, two_traces):
    told = json.loads(run("profile", str(two_traces[0]), "--from", "2.5", "--to", "5.5", "--json").stdout)
    assert {row["name"]: row["calls"] for row in told["kernels"]} == {
        "fused_moe_kernel": 1,
        "nvjet_gemm": 1,
        "argmax": 1,
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seconds", "3"), "--seconds without --url has no effect"),
        (("--from", "1"), "--from without a trace or --url"),
        (("trace.json", "--traces", "x"), "--traces without --url"),
        (("trace.json", "--url", "http://x"), "not both"),
    ],
)
def test_flags_without_an_effect_are_refused(run, words, said):
    assert said in str(run("profile", *words).exception)


def test_running_server_is_recorded_by_its_own_profiler(run, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "SETTLED_S", 0.02)
    monkeypatch.setattr(recording, "POLL_S", 0.01)
    with profiling_server(folder=tmp_path) as (url, _):
        result = run("profile", "--url", url, "--seconds", "0.1", "--traces", str(tmp_path), "--decode")
    assert result.exit_code == 0, repr(result.exception)
    assert "vllm, decoding, batch 1, context 128" in result.stdout and "over 4 steps" in result.stdout


def test_prompts_of_the_built_in_engine(run, checkpoint):
    words = ("--model", str(checkpoint), "--device", "cpu", "--context", "8", "--steps", "2")
    told = json.loads(run("profile", "--prompt", *words, "--json").stdout)
    assert told["unit"] == "prompt" and told["steps"] == 2 and told["layers"]
    assert {"scheduler", "model"} <= {row["stage"] for row in told["host"]}
