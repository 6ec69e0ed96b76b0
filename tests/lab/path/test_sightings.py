"""Lines that show a slot: how many are kept, which part of a long one, and weak signs."""

import pytest

from firesteel.lab.path.engine_rules import EngineRules, Sign
from firesteel.lab.path.evidence import PathEvidence
from firesteel.lab.path.sightings import find_sightings, is_older
from tests.lab.path.evidence_lines import GROUPED, judge


def find(evidence, *signs):
    return find_sightings(EngineRules(engine="x", signs=signs), PathEvidence(**evidence))


def test_long_line_is_shortened_around_the_match():
    line = f"Initializing a V1 LLM engine (v1) with config: {'a=1, ' * 500}device_config=cpu, {'b=2, ' * 500}"
    [sighting] = judge("vllm", log=[line], machine="").slots["attention"].sightings
    assert "device_config=cpu" in sighting.line and len(sighting.line) < 400


def test_long_name_of_a_kernel_is_shortened_and_keeps_its_launches_if_it_fits():
    long = {f"void {'x' * 500}{GROUPED}": 3}
    assert "GroupProblemShape" in judge("vllm", kernels=long).slots["moe"].sightings[0].line
    short = judge("vllm", kernels={"void marlin::Marlin<1>": 3}).slots["dense"].sightings[0]
    assert str(short) == "trace: void marlin::Marlin<1> (3 launches)"


def test_few_lines_are_kept_per_value_and_equal_ones_once():
    sign = Sign(slot="kv", log=("kv is (?P<value>\\w+)",))
    log = ["kv is FP8"] * 5 + [f"kv is fp8 number {number}" for number in range(9)] + ["kv is bf16"]
    seen = find({"log": log}, sign)["kv"]
    assert [sighting.value for sighting in seen] == ["fp8", "fp8", "fp8", "bf16"]


def test_weak_sign_counts_only_if_nothing_else_shows_the_slot():
    weak = Sign(slot="moe", value="cuda", is_weak=True, log=("build",))
    strong = Sign(slot="moe", value="cpu", log=("offloaded 0",))
    assert [sighting.value for sighting in find({"log": ["build"]}, weak, strong)["moe"]] == ["cuda"]
    both = find({"log": ["build", "offloaded 0"]}, weak, strong)["moe"]
    assert [sighting.value for sighting in both] == ["cpu"]


def test_variable_must_match_as_a_whole():
    sign = Sign(slot="sinks", value="off", environment=("SINKS=(false|0)",))
    assert find({"environment": {"SINKS": "false"}}, sign)["sinks"]
    for environment in ({"SINKS": "falsehood"}, {"MY_SINKS": "false"}, {"SINKS": "1"}):
        assert not find({"environment": environment}, sign)["sinks"]


@pytest.mark.parametrize(
    ("version", "limit", "expected"),
    [
        ("3.7.1", "3.8", True),
        ("3.8", "3.8", False),
        ("3.8.0", "3.8", False),
        ("3.10.0", "3.8", False),
        ("2.14.0+cu130", "3.8", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version, limit, expected):
    assert is_older(version, limit) is expected
