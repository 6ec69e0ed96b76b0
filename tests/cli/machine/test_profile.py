"""The verb `profile`: tables and JSON of the built-in engine and of a trace."""

import json

import pytest

from firesteel.device import find_device
from firesteel.measure.ops.memory import free_memory


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


GPU = ("profile", "--synthetic", "gpt-oss-20b", "--device", "cuda", "--steps", "32", "--no-front", "--json")


@pytest.fixture
def profile_gpu(run):
    """profile_gpu(*flags): the profile. Engines of earlier tests first release their memory."""

    def run_profile(*flags):
        free_memory(find_device("cuda"))
        result = run(*GPU, *flags)
        assert result.exit_code == 0, repr(result.exception)
        return json.loads(result.stdout)

    return run_profile


@pytest.mark.gpu
def test_sum_is_the_step_within_five_percent_on_a_gpu(profile_gpu):
    profile = profile_gpu()
    assert profile["sum_ms"] == pytest.approx(profile["measured_ms"], rel=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 16])  # the fused kernels decode one token, the others 16
def test_bandwidths_are_known_on_a_gpu(profile_gpu, batch):
    profile = profile_gpu("--batch", str(batch))
    categories = {row["category"]: row for row in profile["categories"]}
    assert all(categories[name]["gb_s"] for name in ("experts", "dense", "attention")), categories
    assert categories.get("other", {"share": 0.0})["share"] < 0.05, categories
    reading = {row["name"]: row["gb_s"] for row in profile["kernels"] if row["gb_s"] is not None}
    assert max(profile["kernels"], key=lambda row: row["ms"])["name"] in reading
    assert all(rate < 10_000 for rate in reading.values()), reading
