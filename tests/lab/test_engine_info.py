"""What a result states about the engine under test."""

import json

import pytest

from firesteel.lab.engine_info import EngineInfo
from firesteel.lab.path.imports import ImportedPackage
from firesteel.lab.result import parse_result

FULL = EngineInfo(
    name="vllm",
    kind="vllm",
    version="0.32.0",
    commit="0123456789abcdef",
    is_dirty=False,
    packages={"torch": "2.13.0"},
    modules={"flashinfer": ImportedPackage(file="/f/__init__.py", version="0.7", is_dirty=True)},
    environment={"VLLM_USE_V1": "1"},
    clocks_mhz={"sm": 1980.0},
    digest="vllm/vllm-openai@sha256:12",
)


def test_all_fields_survive_a_result_file():
    content = json.loads(json.dumps({"levels": [], "engine": FULL.as_dict()}))
    assert parse_result(content).engine == FULL
    assert content["engine"]["is_dirty"] is False and "driver" not in content["engine"]


def test_engine_of_an_earlier_result_is_read():
    earlier = {"name": "vllm", "kind": "vllm", "device": "CPU", "command": ["vllm", "serve"], "log": None}
    engine = parse_result({"levels": [], "engine": earlier}).engine
    assert engine.command == ("vllm", "serve") and engine.packages == {} and engine.version is None
    assert set(engine.as_dict()) == {*earlier, "startup_s", "peak_bytes", "gpu_scope"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ""),
        ({"version": "0.32.0"}, "vllm 0.32.0"),
        ({"version": "b6000", "commit": "0123456789abcdef", "is_dirty": True}, "vllm b6000 (012345678, dirty)"),
    ],
)
def test_release_names_version_and_commit_as_far_as_known(fields, words):
    assert EngineInfo(name="vllm --port 1", kind="vllm", **fields).release == words
