"""Verbs without their packages report what is missing, and all others work."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

# Every verb in one process: importing torch takes seconds.
BARE = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
class Missing:
    def find_spec(self, name, path=None, target=None):
        absent = {"httpx2", "msgspec", "starlette", "uvicorn", "prometheus_client", "llguidance", "altair"}
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
from huggingface_hub import snapshot_download  # its present version has httpx2 itself
for name in [name for name in sys.modules if name.partition(".")[0] == "httpx2"]:
    del sys.modules[name]
sys.meta_path.insert(0, Missing())
from firesteel.cli import main
for line in sys.stdin:
    sys.argv = ["firesteel", *json.loads(line)]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    print(json.dumps({"returncode": code, "stdout": out.getvalue(), "stderr": err.getvalue()}), flush=True)
"""


@pytest.fixture(scope="module")
def run_bare():
    """run_bare("bench", "--help") runs with a source checkout and torch only, as on a bare GPU machine."""
    command, pipes = [sys.executable, "-c", BARE], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as child:

        def run(*arguments):
            child.stdin.write(json.dumps(arguments) + "\n")
            child.stdin.flush()
            return SimpleNamespace(**json.loads(child.stdout.readline()))

        yield run
        child.stdin.close()


@pytest.mark.parametrize("arguments", [["serve", "--port", "0"], ["lab", "run", "--quick"], ["lab", "compare"]])
def test_verb_without_its_package_names_the_package(run_bare, arguments):
    result = run_bare(*arguments)
    assert result.returncode != 0 and f"firesteel {arguments[0]} needs the package" in result.stderr
    assert "pip install" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "decode", "--help"], ["--context", "--synthetic"]),
        (["bench", "agreement", "--help"], ["--prompt-tokens"]),
        (["roofline", "--gpu", "gb10"], []),
    ],
)
def test_measuring_verbs_work_on_a_bare_machine(run_bare, arguments, words):
    result = run_bare(*arguments)
    assert result.returncode == 0 and result.stdout, result.stderr
    assert all(word in result.stdout for word in words)


def test_prefill_is_measured_on_a_bare_machine(run_bare, checkpoint, tmp_path):
    settings = ["--model", str(checkpoint), "--device", "cpu", "--memory-reserve-gib", "0", "--out", str(tmp_path)]
    result = run_bare("bench", "prefill", *settings, "--tokens", "16", "--rounds", "1")
    assert result.returncode == 0 and list(tmp_path.glob("*.json")), result.stderr
