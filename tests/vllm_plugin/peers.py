"""Environments with vLLM's CPU build beside our package (`make vllm`), and programs run in them.

That of 0.33 has its Python files on the compiled part of 0.32's CPU build.
"""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSIONS = ("0.28.0", "0.30.0", "0.32.0", "0.33.0")
TIMEOUT_S = 900.0
ENVIRONMENT = {
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else each rank wants a NUMA node of its own
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # for functions that are sent to the workers
    "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
}


def folder_of(version):
    return ROOT / f".venv-vllm-{version}" / "bin"


def is_installed(version):
    return (folder_of(version).parent / "installed").is_file()


INSTALLED = [
    pytest.param(
        version, marks=pytest.mark.skipif(not is_installed(version), reason="needs vLLM's CPU builds: make vllm")
    )
    for version in VERSIONS
]
each_version = pytest.mark.parametrize("version", INSTALLED)


def environment(**extra):
    """Returns the environment of this process without our settings, with what vLLM needs on a CPU."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("FIRESTEEL_", "VLLM_"))}
    return ours | ENVIRONMENT | extra


def run_python(version, words, *, task=None, timeout_s=TIMEOUT_S, **extra):
    """Runs a program of the environment; returns its exit code and all that it wrote. Leaves no process behind."""
    process = subprocess.Popen(
        [folder_of(version) / "python", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env=environment(**extra),
        start_new_session=True,
    )
    try:
        output, _ = process.communicate("" if task is None else json.dumps(task), timeout=timeout_s)
    finally:
        end_session(process.pid)
        process.wait()
    return process.returncode, output


def end_session(leader):
    """Kills what is left of a process group that we started."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def generate(version, *, rounds, max_tokens, options, has_logprobs=False, reloads=False, **extra):
    """Returns the answer of tests/vllm_plugin/generate.py and its log."""
    task = {
        "options": options,
        "rounds": rounds,
        "max_tokens": max_tokens,
        "has_logprobs": has_logprobs,
        "reloads": reloads,
    }
    code, output = run_python(version, [ROOT / "tests/vllm_plugin/generate.py"], task=task, **extra)
    answers = [line for line in output.splitlines() if line.startswith('{"models"')]
    assert code == 0 and answers, output[-20_000:]
    return json.loads(answers[-1]), output
