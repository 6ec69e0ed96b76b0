"""What a rerun says about an engine that has changed since."""

import importlib.metadata
import sys

import pytest

from firesteel.lab.engine_differences import find_engine_now, list_engine_differences
from firesteel.lab.engine_info import EngineInfo
from firesteel.lab.path.imports import ImportedPackage
from firesteel.lab.servers.container.runtime import ContainerRuntime

VERSION = importlib.metadata.version("msgspec")


def test_changed_versions_commits_and_packages_are_listed():
    before = EngineInfo(
        interpreter="/v/python",
        cudnn="9.1",
        modules={
            "vllm": ImportedPackage(file="/a/vllm/__init__.py", version="0.32", commit="1a", is_dirty=False),
            "triton": ImportedPackage(version="3.7"),
        },
        packages={"vllm": "0.32", "numpy": "2.1", "same": "1"},
    )
    now = EngineInfo(
        interpreter="/v/python",
        cudnn="9.2",
        modules={"vllm": ImportedPackage(file="/a/vllm/__init__.py", version="0.32", commit="2b", is_dirty=True)},
        packages={"vllm": "0.32", "numpy": "2.2", "same": "1", "new": "3"},
    )
    assert list_engine_differences(before, now) == [
        "cudnn of the engine: 9.1 before, 9.2 now",
        "commit of vllm: 1a before, 2b now",
        "is_dirty of vllm: False before, True now",
        "triton: 3.7 before, not installed now",
        "package new: unknown before, 3 now",
        "package numpy: 2.1 before, 2.2 now",
    ]


def test_same_engine_has_no_differences():
    before = EngineInfo(interpreter=sys.executable, modules={"msgspec": ImportedPackage(version="0.1")})
    now = find_engine_now(before, {})
    assert now.modules["msgspec"].version == VERSION
    assert list_engine_differences(now, find_engine_now(now, {})) == []


def test_interpreter_that_is_gone_is_the_only_difference():
    before = EngineInfo(interpreter="/no/such/python", packages={"vllm": "0.32"})
    [line] = list_engine_differences(before, find_engine_now(before, {}))
    assert line == "interpreter of the engine: /no/such/python before, which does not exist here"


@pytest.mark.parametrize(
    ("digest", "lines"),
    [
        ("x@sha256:1", []),
        ("x@sha256:2", ["image x: x@sha256:1 before, x@sha256:2 now"]),
        ("", ["image x: x@sha256:1 before, not on this machine now"]),
    ],
)
def test_engine_in_a_container_is_compared_by_the_digest_of_its_image(digest, lines, monkeypatch):
    """Its interpreter's path says nothing about this machine."""
    asked = []
    monkeypatch.setattr(ContainerRuntime, "find_digest", lambda self, image: asked.append((self, image)) or digest)
    command = ("sudo", "podman", "run", "x")
    before = EngineInfo(image="x", digest="x@sha256:1", interpreter=sys.executable, command=command)
    assert list_engine_differences(before, find_engine_now(before, {})) == lines
    assert asked == [(ContainerRuntime(("sudo", "podman")), "x")]


def test_engine_without_python_has_no_differences():
    assert list_engine_differences(EngineInfo(version="b6000"), find_engine_now(EngineInfo(), {})) == []
