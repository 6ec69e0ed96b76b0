"""What is learnt about a running engine."""

import sys
from types import SimpleNamespace

import pytest

from firesteel.device import find_device
from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.engine_facts import describe_engine, find_library
from firesteel.lab.path.imports import ImportedPackage, ServerImports
from firesteel.lab.path.place import HostPlace
from firesteel.lab.servers.target import Target

COMMIT = "1a2b3c4d5e6f"


@pytest.fixture
def describe(tmp_path, monkeypatch):
    """describe("vllm", answers={"/version": {...}}): the facts of a server; with `imports` the lab started it."""

    def run(kind, *, answers=None, imports=None, environment=None):
        def get(self, path):
            if path not in (answers or {}):
                raise RequestFailed("http-error", "no such path", status=404)
            return answers[path]

        monkeypatch.setattr(Api, "get", get)
        monkeypatch.setattr("firesteel.lab.servers.target.find_imports", lambda place, names: imports)
        server = imports and SimpleNamespace(place=HostPlace(environment=environment or {}))
        target = Target(api=Api(url="http://h:1", model="m"), kind=kind, folder=tmp_path, model="m", server=server)
        return describe_engine(target, name="n", device=find_device("cpu"))

    return run


def test_engine_that_the_lab_started_has_version_commit_packages_and_environment(describe):
    packages = {"vllm": ImportedPackage(file="/v/__init__.py", version="0.32.0", commit=COMMIT), "flashinfer": None}
    distributions = {"torch": "2.13", "nvidia-cudnn-cu13": "9.15.0", "nvidia-nccl-cu13": "2.28.3"}
    imports = ServerImports(packages=packages, distributions=distributions, python="3.12.3", cuda="13.0")
    environment = {"VLLM_USE_V1": "1", "PYTHONPATH": "/fork", "HF_TOKEN": "hunter2", "SHELL": "/bin/sh"}
    info = describe("vllm+firesteel", imports=imports, environment=environment)
    assert (info.version, info.commit, info.python, info.cuda) == ("0.32.0", COMMIT, "3.12.3", "13.0")
    assert (info.cudnn, info.nccl, info.packages) == ("9.15.0", "2.28.3", distributions)
    assert set(info.modules) == {"vllm"}
    assert info.environment == {"HF_TOKEN": "(hidden)", "PYTHONPATH": "/fork", "VLLM_USE_V1": "1"}


@pytest.mark.parametrize(
    ("kind", "answers", "version", "commit"),
    [
        ("vllm", {"/version": {"version": "0.32.0"}}, "0.32.0", None),
        ("llamacpp", {"/props": {"build_info": "b6000-1a2b3c4d"}}, "b6000", "1a2b3c4d"),
        ("sglang", {"/get_server_info": {"version": "0.6.1"}}, "0.6.1", None),
        ("vllm", {}, None, None),
        ("vllm", {"/version": ["0.32.0"]}, None, None),
        ("other", {"/version": {"version": "1"}}, None, None),
    ],
)
def test_server_that_was_running_already_states_its_version_by_its_api(kind, answers, version, commit, describe):
    info = describe(kind, answers=answers)
    assert (info.version, info.commit, info.environment) == (version, commit, {})


def test_libraries_of_the_image_count_if_there_is_no_wheel():
    assert find_library("cudnn", {}, {"NV_CUDNN_VERSION": "9.1", "CUDNN_VERSION": "9.2"}) == "9.1"
    assert find_library("nccl", {}, {}) is None


def test_python_behind_a_shell_is_found(tmp_path):
    import subprocess

    import psutil

    program = f"{sys.executable} -c \"print('ready', flush=True); input()\"; true"
    with subprocess.Popen(["sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        shell.stdout.readline()
        process = psutil.Process(shell.pid)
        place = HostPlace.of([process, *process.children(recursive=True)])
        shell.stdin.close()
    assert place.interpreter == sys.executable
