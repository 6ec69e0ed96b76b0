"""llama-benchy is found, run against a server that is gone afterwards, or refused with the cure."""

import json
import sys
from pathlib import Path

import pytest

from firesteel.errors import UserError
from firesteel.lab.bench import benchy
from firesteel.lab.bench.benchy import BenchyPlan, BenchyUnavailable, find_benchy, run_benchy
from firesteel.lab.servers.supervisor import ServerCommand, is_free

MOCK = str(Path(__file__).parents[1] / "mock.py")
PLAN = BenchyPlan(pp=(512,), tg=(16, 32), depths=(0, 128), runs=2, limit_s=30)
REPORTS = """
import json, os, sys
words = sys.argv[1:]
report = {"words": words, "proxies": [os.environ[name] for name in ("NO_PROXY", "no_proxy")]}
open(words[words.index("--save-result") + 1], "w").write(json.dumps(report))
"""
NO_BOOK = "print('Error downloading or processing book: no route'); raise SystemExit(1)"
CRASHES = "print('Coherence test FAILED'); raise SystemExit(1)"
OTHER_TOKENIZER = REPORTS + """print("Falling back to 'gpt2' tokenizer as approximation.")"""
HANGS = "import time; print('Warming up', flush=True); time.sleep(60)"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """run(program, plan): the report of a Python program in place of llama-benchy; its server must be gone."""
    commands = []

    def make_command(engine, *, model, port, folder, flags):
        words = (sys.executable, MOCK, f"port={port}", *flags)
        commands.append(ServerCommand(words=words, url=f"http://127.0.0.1:{port}"))
        return commands[0]

    def run(program, plan=PLAN):
        monkeypatch.setattr(benchy, "find_benchy", lambda: [sys.executable, "-c", program])
        return run_benchy(plan, "kindling", tmp_path, ["pp_tok_s=100"])

    monkeypatch.setattr(benchy, "make_command", make_command)
    yield run
    assert len(commands) == 1 and is_free(commands[0].address)


def values_after(words, flag):
    rest = words[words.index(flag) + 1 :]
    end = next((place for place, word in enumerate(rest) if word.startswith("--")), len(rest))
    return rest[:end]


def test_sizes_server_and_tokenizer_reach_it_and_its_report_is_kept(run, tmp_path, monkeypatch):
    monkeypatch.setenv("FIRESTEEL_API_KEY", "sk-123")
    report = run(REPORTS)
    words = report["words"]
    assert values_after(words, "--pp") == ["512"] and values_after(words, "--tg") == ["16", "32"]
    assert values_after(words, "--depth") == ["0", "128"] and values_after(words, "--runs") == ["2"]
    assert values_after(words, "--model") == ["mock"] and values_after(words, "--api-key") == ["sk-123"]
    assert Path(values_after(words, "--tokenizer")[0], "tokenizer.json").is_file()
    assert report["proxies"] == ["127.0.0.1", "127.0.0.1"]
    assert json.loads((tmp_path / "llama-benchy.json").read_text()) == report


def test_missing_book_is_told_with_its_output(run, tmp_path):
    with pytest.raises(BenchyUnavailable, match="connect this machine to the network") as caught:
        run(NO_BOOK)
    assert caught.value.as_dict()["output"] == "Error downloading or processing book: no route"
    assert "no route" in str(caught.value)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (CRASHES, "exited with code 1; it printed:\nCoherence test FAILED"),
        ("print('nothing')", "exited with code 0; it printed:\nnothing"),
        (OTHER_TOKENIZER, "could not read the checkpoint's tokenizer"),
    ],
)
def test_run_without_a_valid_report_is_an_error(run, tmp_path, program, message):
    (tmp_path / "llama-benchy.json").write_text("{}")  # of an earlier run
    with pytest.raises(UserError, match=message) as caught:
        run(program)
    assert not isinstance(caught.value, BenchyUnavailable)


def test_program_that_hangs_is_stopped(run):
    with pytest.raises(UserError, match="stopped after 2 s; raise --limit-s; it printed:\nWarming up"):
        run(HANGS, BenchyPlan(pp=(1,), tg=(1,), depths=(0,), runs=1, limit_s=2))


def test_it_is_found_in_this_environment_then_on_the_path(monkeypatch):
    monkeypatch.setattr(benchy, "MODULE", "json")
    assert find_benchy() == [sys.executable, "-m", "json"]
    monkeypatch.setattr(benchy, "MODULE", "no_such_module")
    monkeypatch.setattr("shutil.which", {"llama-benchy": "/opt/llama-benchy"}.get)
    assert find_benchy() == ["/opt/llama-benchy"]


def test_it_is_looked_for_before_a_server_is_started(monkeypatch, tmp_path):
    monkeypatch.setattr(benchy, "MODULE", "no_such_module")
    monkeypatch.setattr("shutil.which", lambda program: None)
    monkeypatch.setattr(benchy, "SupervisedServer", None)
    with pytest.raises(BenchyUnavailable, match="`pip install llama-benchy`"):
        run_benchy(PLAN, "kindling", tmp_path)
