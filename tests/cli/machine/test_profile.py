"""The verb profile: tables and JSON of the built-in engine and of a trace."""

import json

import pytest

from firesteel.device import find_device
from firesteel.measure.ops.memory import free_memory


def test_the_built_in_engine_on_a_cpu(run, checkpoint, tmp_path):
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
    found = json.loads(result.stdout)
    assert found["sum_ms"] == pytest.approx(found["step_ms"])
    assert {"experts", "dense", "attention", "gaps"} <= {one["category"] for one in found["categories"]}
    assert found["layers"][-1]["layer"] == "outside layers" and found["host"][0]["stage"] == "scheduler"
    written = json.loads((tmp_path / "profile.json").read_text())
    surroundings = written.pop("surroundings")
    assert written == found and surroundings["device"] == "CPU" and surroundings["versions"]["torch"]
    assert "By layer" in (tmp_path / "report.html").read_text()


def test_a_trace_of_another_engine(run, tmp_path):
    events = [
        {"cat": "kernel", "name": name, "ts": 10 * number, "dur": 5}
        for number, name in enumerate(["fused_moe_kernel", "nvjet_gemm", "argmax"] * 2)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    result = run("profile", str(path))
    assert result.exit_code == 0 and "over 2 steps" in result.stdout and "fused_moe_kernel" in result.stdout
    found = json.loads(run("profile", str(path), "--model", "gpt-oss-20b", "--steps", "1", "--json").stdout)
    assert found["steps"] == 1 and found["categories"][0]["gb_s"] is not None and len(found["layers"]) == 25


GPU = ("profile", "--synthetic", "gpt-oss-20b", "--device", "cuda", "--steps", "32", "--no-front", "--json")


@pytest.fixture
def profile_gpu(run):
    """profile_gpu(*flags): what it found. Engines of tests before it give back their memory first."""

    def profile(*flags):
        free_memory(find_device("cuda"))
        result = run(*GPU, *flags)
        assert result.exit_code == 0, repr(result.exception)
        return json.loads(result.stdout)

    return profile


@pytest.mark.gpu
def test_the_sum_is_the_step_within_five_percent_on_a_gpu(profile_gpu):
    found = profile_gpu()
    assert found["sum_ms"] == pytest.approx(found["measured_ms"], rel=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 16])  # the fused kernels decode one token, the others 16
def test_bandwidths_are_given_on_a_gpu(profile_gpu, batch):
    found = profile_gpu("--batch", str(batch))
    categories = {one["category"]: one for one in found["categories"]}
    assert all(categories[name]["gb_s"] for name in ("experts", "dense", "attention")), categories
    assert categories.get("other", {"share": 0.0})["share"] < 0.05, categories
    reading = {one["name"]: one["gb_s"] for one in found["kernels"] if one["gb_s"] is not None}
    assert max(found["kernels"], key=lambda one: one["ms"])["name"] in reading
    assert all(rate < 10_000 for rate in reading.values()), reading
