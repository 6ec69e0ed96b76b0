"""A matrix continues after an interruption, and a crash affects one cell only."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import pytest

from firesteel.errors import UserError
from firesteel.lab.matrix import matrix as module
from firesteel.lab.matrix.matrix import CLAIM, run_matrix
from firesteel.lab.matrix.result import CRASHED, DONE, TOO_LONG, Configuration, Matrix, Origin
from firesteel.lab.verdict import Verdict

# A cell that records that it ran, and crashes for one choice of gates.
FAKE = textwrap.dedent("""
    import json, os, sys, time
    from pathlib import Path
    path = Path(sys.argv[1])
    chosen = json.loads(path.read_text())["chosen"]
    with open(path.parents[1] / "ran.txt", "a") as file:
        file.write(json.dumps(chosen) + "\\n")
    if chosen == {"kv_dtype": "fp8", "sinks": "off"} and not (path.parents[1] / "mended").exists():
        print("about to fail", flush=True)
        os.kill(os.getpid(), 11)
    time.sleep(float(os.environ.get("FAKE_CELL_S", "0")))
    (path.parent / "environment.json").write_text(json.dumps(dict(os.environ)))
    speed = 10.0 * len(chosen.get("kv_dtype", ""))
    done = {"status": "done", "verdict": "passed", "unranked": "", "figures": {"tg_tok_s": speed}, "bench": {}}
    path.with_name("outcome.json").write_text(json.dumps(done))
""")
GATES = {"kv_dtype": ("auto", "fp8"), "sinks": ("on", "off")}


@pytest.fixture
def fake(tmp_path):
    path = tmp_path / "fake.py"
    path.write_text(FAKE)
    return (sys.executable, str(path))


def ran(folder):
    path = folder / "ran.txt"
    return path.read_text().splitlines() if path.exists() else []


def test_crash_is_recorded_and_the_other_cells_complete(tmp_path, fake):
    progress = []
    result = run_matrix(Matrix(gates=GATES), tmp_path / "cells", on_progress=progress.append, command=fake)
    assert [cell.status for cell in result.cells] == [DONE, DONE, DONE, CRASHED]
    assert "SIGSEGV" in result.cells[-1].reason and "about to fail" in result.cells[-1].reason
    assert result.words == "3 of 4 cells done, 1 without a rank" and not result.all_done
    assert [cell.rank for cell in result.cells] == [1, 1, 3, None] and result.verdict is Verdict.FAILED
    assert result.figures == {"tg_tok_s": "tok/s"} and len(progress) == 4


def test_finished_cells_are_not_repeated(tmp_path, fake):
    matrix, folder = Matrix(gates=GATES), tmp_path / "cells"
    first = run_matrix(matrix, folder, command=fake)
    assert run_matrix(matrix, folder, command=fake) == first
    assert len(ran(folder)) == 4
    (folder / "mended").touch()
    assert run_matrix(matrix, folder, command=fake, again=True).all_done
    assert len(ran(folder)) == 5  # the one that had crashed


def test_cell_of_an_earlier_version_is_kept_without_a_rank_and_measured_again_on_request(tmp_path, fake):
    matrix, folder = Matrix(gates={"kv_dtype": ("auto",)}), tmp_path / "cells"
    folder.mkdir()
    earlier = {"gates": {"kv_dtype": "auto"}, "status": "done", "figures": {"tg_tok_s": 7.0}, "reason": ""}
    (folder / "kv_dtype=auto.json").write_text(json.dumps(earlier))
    [kept] = run_matrix(matrix, folder, command=fake).cells
    assert "earlier version" in kept.unranked and kept.rank is None and not ran(folder)
    [measured] = run_matrix(matrix, folder, command=fake, again=True).cells
    assert measured.rank == 1 and len(ran(folder)) == 1


def test_process_of_a_cell_has_its_variables_and_lacks_those_to_leave_out(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("VLLM_KEPT", "as it was")
    monkeypatch.setenv("VLLM_B", "inherited")
    best = Configuration(name="best", environment={"VLLM_A": "{1,2}", "HF_TOKEN": "hf_secret"})
    gates = {"configuration": ("best",), "env:VLLM_B": ("without", "new")}
    matrix = Matrix(gates=gates, configurations=(best,), engine="vllm", environment={"VLLM_C": "3"})
    [without, new] = run_matrix(matrix, tmp_path / "cells", command=fake).cells
    seen = [json.loads((tmp_path / cell.folder / "environment.json").read_text()) for cell in (without, new)]
    assert "VLLM_B" not in seen[0] and seen[1]["VLLM_B"] == "new"
    for environment in seen:
        given = {name: environment[name] for name in ("VLLM_A", "VLLM_C", "VLLM_KEPT", "HF_TOKEN")}
        assert given == {"VLLM_A": "{1,2}", "VLLM_C": "3", "VLLM_KEPT": "as it was", "HF_TOKEN": "hf_secret"}
    assert new.environment == {"VLLM_A": "{1,2}", "VLLM_C": "3", "HF_TOKEN": "(hidden)", "VLLM_B": "new"}
    written = [path.read_text() for path in (tmp_path / "cells").rglob("*.json") if path.name != "environment.json"]
    assert len(written) == 7 and not any("hf_secret" in text for text in written)


def test_cells_of_another_commit_or_device_are_named(tmp_path, fake, monkeypatch):
    matrix, folder, progress = Matrix(gates={"kv_dtype": ("auto", "fp8")}), tmp_path / "cells", []
    monkeypatch.setattr(Origin, "now", lambda: Origin("abc", "H200"))
    assert run_matrix(matrix, folder, command=fake).words == "2 of 2 cells done"
    (folder / "kv_dtype=fp8.json").unlink()
    monkeypatch.setattr(Origin, "now", lambda: Origin("def", "H200"))
    result = run_matrix(matrix, folder, command=fake, on_progress=progress.append)
    assert [cell.commit for cell in result.cells] == ["abc", "def"]
    assert "1 of 2 cells were measured before" in progress[0] and len(progress) == 2
    for words in (progress[0], result.words):
        assert "1 of them with commit abc on H200; this is commit def on H200" in words


@pytest.mark.slow
def test_interrupted_matrix_continues_and_leaves_no_process(tmp_path, fake):
    folder = tmp_path / "cells"
    program = textwrap.dedent(f"""
        from pathlib import Path
        from firesteel.lab.matrix.matrix import run_matrix
        from firesteel.lab.matrix.result import Matrix
        run_matrix(Matrix(gates={GATES!r}), Path({str(folder)!r}), command={fake!r})
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "FAKE_CELL_S": "3"}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 60
        while len(ran(folder)) < 2:  # the first is done, the second under way
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert len(list(folder.glob("kv_dtype*.json"))) == 1
    before = ran(folder)
    result = run_matrix(Matrix(gates=GATES), folder, command=fake)
    assert [cell.status for cell in result.cells] == [DONE, DONE, DONE, CRASHED]
    assert ran(folder)[len(before) :][0] == before[1] and len(ran(folder)) == 5


def test_cell_that_takes_too_long_is_stopped(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("FAKE_CELL_S", "60")
    result = run_matrix(Matrix(gates={"kv_dtype": ("auto",)}, cell_s=1.0), tmp_path / "cells", command=fake)
    assert result.cells[0].status == TOO_LONG and result.cells[0].seconds < 30


def test_another_matrix_in_the_same_folder_is_refused(tmp_path, fake):
    run_matrix(Matrix(gates={"kv_dtype": ("auto",)}), tmp_path, command=fake)
    with pytest.raises(UserError, match="another matrix"):
        run_matrix(Matrix(gates={"sinks": ("on",)}), tmp_path, command=fake)
    (tmp_path / "kv_dtype=auto.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        run_matrix(Matrix(gates={"kv_dtype": ("auto",)}), tmp_path, command=fake)


def test_folder_of_an_earlier_version_continues(tmp_path, fake):
    matrix = Matrix(gates={"kv_dtype": ("auto",)})
    run_matrix(matrix, tmp_path, command=fake)
    claimed = json.loads((tmp_path / CLAIM).read_text())
    (tmp_path / CLAIM).write_text(json.dumps({name: claimed[name] for name in claimed if name != "grace_s"}))
    run_matrix(matrix, tmp_path, command=fake)
    assert len(ran(tmp_path)) == 1
    with pytest.raises(UserError, match="another matrix"):
        run_matrix(replace(matrix, grace_s=1.0), tmp_path, command=fake)


def test_outcomes_are_json(tmp_path, fake):
    run_matrix(Matrix(gates=GATES), tmp_path, command=fake)
    content = json.loads((tmp_path / "kv_dtype=auto,sinks=on.json").read_text())
    assert content["gates"] == {"kv_dtype": "auto", "sinks": "on"} and content["figures"]["tg_tok_s"] == 40.0


def test_cells_with_unusual_characters_have_different_files():
    names = [module.slug({"model": value}) for value in ("a/b", "a b", "a-b", "x" * 300, "x" * 301)]
    assert len(set(names)) == 5 and max(map(len, names)) < 140
    assert module.slug({"kv_dtype": "fp8", "sinks": "on"}) == "kv_dtype=fp8,sinks=on"
