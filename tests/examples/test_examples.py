"""Runs every example as a user would, on a CPU with the built-in model."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ENVIRON = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def run(name, *flags, folder):
    """Returns the finished process; warnings are errors in it, as in the tests."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *flags]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **ENVIRON}, capture_output=True, encoding="utf-8", timeout=300
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Address of `firesteel serve` with the built-in model, the server that the examples' first lines start."""
    folder = tmp_path_factory.mktemp("serve")
    command = [sys.executable, "-m", "firesteel", "serve", "--device", "cpu", "--port", "0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **ENVIRON}, stdout=subprocess.PIPE, stderr=log, encoding="utf-8"
        )
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), (folder / "log").read_text()
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        process.stdout.close()


@pytest.fixture
def add_an_op():
    pytest.importorskip("triton")
    spec = importlib.util.spec_from_file_location("add_an_op", EXAMPLES / "add_an_op.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_listed_and_run_here():
    names = {path.name for path in EXAMPLES.glob("*.py")}
    listed, tests = (EXAMPLES / "README.md").read_text(), Path(__file__).read_text()
    assert names and all(f"({name})" in listed and f'"{name}"' in tests for name in names)


def test_offline_generation_continues_streams_and_answers_in_json(tmp_path):
    pytest.importorskip("llguidance")
    ended = run("offline_generation.py", "--device", "cpu", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("'The capital of France is' -> ' Paris") and lines[0].endswith("(length)")
    assert lines[2].startswith("stream: Paris")
    assert json.loads(lines[-1].removeprefix("answer: ")) == {"city": "Paris"}


def test_streaming_client_prints_the_answer_without_reasoning(url, tmp_path):
    ended = run("streaming_client.py", "--url", url, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "The capital of France is Paris.\n"
    assert "capital: Paris" in ended.stderr and "tokens from kindling" in ended.stderr


def test_tool_loop_calls_the_function_and_prints_the_models_answer(url, tmp_path):
    ended = run("tool_loop.py", "--url", url, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    call, answer = ended.stdout.splitlines()
    assert call.startswith("check_file(") and "6910" in call and "6910" in answer


@pytest.mark.slow
def test_verify_a_server_prints_the_verdict_of_each_level(url, tmp_path):
    ended = run("verify_a_server.py", "--url", url, "--out", str(tmp_path / "out"), folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "level 1 smoke: passed; " in ended.stdout and "verdict: passed" in ended.stdout
    assert (tmp_path / "out" / "report.html").is_file()


def test_verify_a_server_fails_if_there_is_none(tmp_path):
    ended = run("verify_a_server.py", "--url", "http://127.0.0.1:9", "--out", "gone", folder=tmp_path)
    assert ended.returncode == 1 and "level 1 smoke: failed; " in ended.stdout, ended.stdout + ended.stderr


def test_add_an_op_passes_its_check_and_is_in_the_ledger(tmp_path):
    pytest.importorskip("triton")
    ended = run("add_an_op.py", "--device", "cpu", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "strided  T=3 I=96       passed" in ended.stdout and "FAILED" not in ended.stdout
    assert "ledger: clamped_swiglu ran as strided, 1 call" in ended.stdout


def test_add_an_op_finds_a_wrong_implementation(add_an_op, monkeypatch, capsys):
    """The check of the example can fail."""
    monkeypatch.setattr(sys, "argv", ["add_an_op.py", "--device", "cpu"])
    strided = add_an_op.clamped_swiglu.implementations["strided"]
    monkeypatch.setitem(
        add_an_op.clamped_swiglu.implementations,
        "strided",
        type(strided)("strided", lambda x, limit: strided.function(x, limit) * 1.1, strided.needs),
    )
    assert add_an_op.main() == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.gpu
def test_add_an_op_runs_its_triton_kernel(tmp_path):
    ended = run("add_an_op.py", folder=tmp_path)
    assert ended.returncode == 0 and "ran as triton" in ended.stdout, ended.stdout + ended.stderr
