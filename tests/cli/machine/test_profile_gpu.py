"""The verb `profile` on a GPU; apart from its other tests, which import a server."""

import json

import pytest

from firesteel.device import find_device
from firesteel.measure.ops.memory import free_memory
from tests.needed_packages import needs_packages

pytestmark = [pytest.mark.gpu, needs_packages("msgspec")]

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


def test_sum_is_the_step_within_five_percent_on_a_gpu(profile_gpu):
    profile = profile_gpu()
    assert profile["sum_ms"] == pytest.approx(profile["measured_ms"], rel=0.05)


@pytest.mark.parametrize("batch", [1, 16])  # the fused kernels decode one token, the others 16
def test_bandwidths_are_known_on_a_gpu(profile_gpu, batch):
    profile = profile_gpu("--batch", str(batch))
    categories = {row["category"]: row for row in profile["categories"]}
    assert all(categories[name]["gb_s"] for name in ("experts", "dense", "attention")), categories
    assert categories.get("other", {"share": 0.0})["share"] < 0.05, categories
    reading = {row["name"]: row["gb_s"] for row in profile["kernels"] if row["gb_s"] is not None}
    assert max(profile["kernels"], key=lambda row: row["ms"])["name"] in reading
    assert all(rate < 10_000 for rate in reading.values()), reading
