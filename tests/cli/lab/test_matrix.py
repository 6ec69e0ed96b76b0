"""The verb `lab matrix` with a server of known speed, whose flags are its gates."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from firesteel.cli.lab.matrix import make_plan, matrix_table
from firesteel.errors import UserError
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.board.board import make_board
from firesteel.lab.matrix.result import SMALL, CellOutcome, Matrix, summarise
from firesteel.lab.path.slots import SlotRow, SlotState, make_table
from firesteel.lab.verdict import Verdict

LAB = Path(__file__).parents[2] / "lab"
MOCK, STAND_IN = str(LAB / "mock.py"), LAB / "matrix" / "vllm_stand_in.py"


CONFIGURATIONS = """
[environment]
MOCK_MOE = "cutlass"

[[configuration]]
name = "slow"
environment = { MOCK_TG_TOK_S = "100" }

[[configuration]]
name = "fast"
environment = { MOCK_TG_TOK_S = "400" }

[[configuration]]
name = "medium"
environment = { MOCK_TG_TOK_S = "200" }

[[configuration]]
name = "fallback"
environment = { MOCK_TG_TOK_S = "800", MOCK_MOE = "marlin" }

[[configuration]]
name = "garbage"
environment = { MOCK_TG_TOK_S = "600", MOCK_GARBAGE = "1" }
"""


@pytest.mark.slow
def test_proven_cells_rank_by_speed_and_those_with_another_path_or_garbage_are_only_listed(
    run, tmp_path, monkeypatch
):
    """The variables of a cell are those of its server, which was started with flags of these names."""
    package = tmp_path / "packages" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "0.32.0"\n')
    (tmp_path / "vllm").symlink_to(STAND_IN)
    (tmp_path / "matrix.toml").write_text(CONFIGURATIONS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), *sys.path]))
    monkeypatch.setenv("MOCK_FOLDER", str(tmp_path))
    engine = f"{shlex.quote(sys.executable)} {shlex.quote(str(tmp_path / 'vllm'))} --port {{port}}"
    words = ["lab", "matrix", "--engine", engine, "--gates-file", str(tmp_path / "matrix.toml"), "--model"]
    words += [
        "gpt-oss-120b",
        "--expect",
        "moe=cutlass,attention=flashinfer,sinks=on",
        "--out",
        str(tmp_path / "out"),
    ]
    result = run(*words, "--json")
    assert result.exit_code == 1, result.output
    content = json.loads((tmp_path / "out" / "result.json").read_text())["matrix"]
    cells = {cell["gates"]["configuration"]: cell for cell in content["cells"]}
    assert {name: cell["rank"] for name, cell in cells.items()} == {
        "slow": 3,
        "fast": 1,
        "medium": 2,
        "fallback": None,
        "garbage": None,
    }
    for name, speed in {"slow": 100, "medium": 200, "fast": 400}.items():
        assert 0.8 * speed < cells[name]["figures"]["tg_tok_s"] < 1.2 * speed
        seen = json.loads((tmp_path / f"{speed}.json").read_text())
        assert cells[name]["environment"] == {"MOCK_MOE": "cutlass", "MOCK_TG_TOK_S": str(speed)}
        assert seen["MOCK_TG_TOK_S"] == str(speed) and seen["MOCK_MOE"] == "cutlass"
        assert cells[name]["verdict"] == "unproven" and "reference" in cells[name]["reason"]
    fallback = cells["fallback"]
    assert fallback["status"] == "not measured" and fallback["figures"] == {}
    assert fallback["slots"]["slots"]["moe"]["state"] == "contradicted" and "moe=marlin" in fallback["unranked"]
    assert (tmp_path / "out" / fallback["folder"] / "report.html").is_file()
    assert cells["garbage"]["figures"] and cells["garbage"]["unranked"].startswith("correctness failed: coherence")
    board = make_board([tmp_path / "out"])
    [section] = board.sections
    assert [name_cell(ranked.entry) for ranked in section.ranked] == ["fast", "medium", "slow"]
    assert sorted(map(name_cell, board.unranked)) == ["fallback", "garbage"]


def name_cell(entry):
    """Returns the configuration of a cell on a board."""
    return Path(entry.path).parent.name.removeprefix("configuration=")


@pytest.mark.slow
def test_cells_are_measured_once_with_their_flags(run, tmp_path):
    engine = f"{shlex.quote(sys.executable)} {shlex.quote(MOCK)} port={{port}}"
    # A gate of another engine becomes --NAME VALUE, which the mock refuses, so that the cell crashes.
    words = ["lab", "matrix", "--engine", engine, "--model", "none", "--gates", "speed=1", "--out", str(tmp_path)]
    result = run(*words)
    assert result.exit_code == 1
    [cell] = json.loads((tmp_path / "result.json").read_text())["matrix"]["cells"]
    assert (
        cell["status"] == "crashed"
        and "--speed" in cell["reason"] + (tmp_path / "cells" / "speed=1" / "server.log").read_text()
    )
    first = (tmp_path / "cells" / "speed=1.json").stat().st_mtime_ns
    assert run(*words).exit_code == 1
    assert (tmp_path / "cells" / "speed=1.json").stat().st_mtime_ns == first
    assert (tmp_path / "report.html").is_file()


def test_key_in_the_command_is_in_neither_result_nor_report(run, tmp_path, monkeypatch):
    empty = summarise(Matrix(gates={}), [])
    monkeypatch.setattr("firesteel.lab.matrix.matrix.run_matrix", lambda *args, **fields: empty)
    engine = "server --port {port} --api-key sk-123"
    run("lab", "matrix", "--engine", engine, "--model", "none", "--gates", "speed=1", "--out", str(tmp_path))
    written = [path.read_text() for path in tmp_path.iterdir() if path.is_file()]
    assert len(written) == 3 and not any("sk-123" in text for text in written)


@pytest.mark.slow
def test_variables_of_firesteel_change_the_kernel_path_of_a_cell(run, tmp_path, monkeypatch):
    monkeypatch.setenv("FIRESTEEL_PREFIX_CACHING", "on")
    gates = ["--gates", "env:FIRESTEEL_KV_DTYPE=without,fp8", "--gates", "env:FIRESTEEL_PREFIX_CACHING=off"]
    result = run("lab", "matrix", *gates, "--out", str(tmp_path), "--", "--device", "cpu")
    assert result.exit_code == 0, result.output
    content = json.loads((tmp_path / "result.json").read_text())["matrix"]
    plain, fp8 = content["cells"]
    assert plain["environment"] == {"FIRESTEEL_PREFIX_CACHING": "off"}
    assert fp8["environment"] == {"FIRESTEEL_KV_DTYPE": "fp8", "FIRESTEEL_PREFIX_CACHING": "off"}
    assert [cell["slots"]["slots"]["kv"]["value"] for cell in (plain, fp8)] == ["fp32", "fp8"]
    assert [cell["verdict"] for cell in (plain, fp8)] == ["passed", "passed"]
    assert sorted(cell["rank"] for cell in (plain, fp8)) == [1, 2]
    levels = json.loads((tmp_path / fp8["folder"] / "result.json").read_text())["levels"]
    assert [level["level"] for level in levels] == ["1.5", "2", "4"]


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """The command of a server whose engine is unknown."""
    values = {"MOCK_MOE": "cutlass", "MOCK_TG_TOK_S": "200", "MOCK_FOLDER": str(tmp_path)}
    for name, value in {**values, "PYTHONPATH": os.pathsep.join(sys.path)}.items():
        monkeypatch.setenv(name, value)
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(STAND_IN))} --port {{port}}"


@pytest.mark.slow
def test_measured_cell_of_an_unknown_kernel_path_has_figures_and_no_rank(run, tmp_path, stand_in):
    words = ["lab", "matrix", "--engine", stand_in, "--model", "none", "--gates", "any=off", "--out", str(tmp_path)]
    result = run(*words)
    assert result.exit_code == 3, result.output
    [cell] = json.loads((tmp_path / "result.json").read_text())["matrix"]["cells"]
    assert 150 < cell["figures"]["tg_tok_s"] < 220 and cell["figures"]["startup_s"] > 0
    assert cell["rank"] is None and "there are no rules" in cell["unranked"] and cell["status"] == "done"
    assert run(*words, "--allow-unjudged").exit_code == 0


@pytest.mark.slow
def test_matrix_stops_its_cell_on_sigterm_and_continues_later(run, tmp_path, stand_in):
    words = ["lab", "matrix", "--engine", stand_in, "--model", "none", "--gates", "any=off", "--out", str(tmp_path)]
    matrix = subprocess.Popen(
        [sys.executable, "-m", "firesteel", *words], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    log = tmp_path / "cells" / "any=off" / "server.log"
    deadline = time.monotonic() + 60
    while not log.is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    processes = psutil.Process(matrix.pid).children(recursive=True)
    matrix.send_signal(signal.SIGTERM)
    assert matrix.wait(60) == 143 and len(processes) >= 2
    assert not any(process.is_running() for process in processes)
    assert not (tmp_path / "cells" / "any=off.json").exists()
    assert run(*words).exit_code == 3


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--gates", "nothing=1,2"], "no gate"),
        ([], "name at least one gate"),
        (["--engine", "vllm", "--gates", "VLLM_X=1,2"], "Write env:VLLM_X="),
        (["--engine", "vllm", "--gates", "env:FIRESTEEL_VLLM=on,off"], "cannot be varied"),
        (["--gates-file", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["--gates", "kv_dtype=auto,fp8", "--path", "none"], "kv_dtype=auto: --path none: the rules for firesteel"),
        (["--gates", "kv_dtype=auto,fp8", "--expect", "moe=what"], "--expect"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(run, tmp_path, words, error):
    result = run("lab", "matrix", *words, "--out", str(tmp_path / "out"))
    assert error in str(result.exception) and not (tmp_path / "out").exists()


def test_sizes_replace_those_of_the_small_or_the_whole_benchmark():
    small = make_plan(False, None, pp="512,2048", tg="", depths="0,4096")
    assert (small.pp, small.tg, small.depths, small.runs) == ((512, 2048), SMALL.tg, (0, 4096), SMALL.runs)
    assert make_plan(True, None, pp="", tg="", depths="") == BenchPlan()
    assert make_plan(False, 7, pp="", tg="", depths="").runs == 7
    with pytest.raises(UserError, match="--pp many: expected"):
        make_plan(False, None, pp="many")


def test_table_has_ranks_verdicts_slots_and_reasons():
    rows = [SlotRow(slot="moe", state=SlotState.CONTRADICTED, values=("marlin",)), SlotRow(slot="dense")]
    rows.append(SlotRow(slot="sinks", is_required=True))
    best = CellOutcome(
        status="done", gates={"x": "1"}, verdict=Verdict.PASSED, unranked="", figures={"tg_tok_s": 5.0}
    )
    fallback = CellOutcome(
        status="not measured",
        gates={"x": "[2]"},
        verdict=Verdict.FAILED,
        slots=make_table("vllm", "", rows),
        unranked="so",
        reason="so",
    )
    table = matrix_table(summarise(Matrix(gates={"x": ("1", "[2]")}), [fallback, best]))
    columns = {column.header: [str(cell) for cell in column.cells] for column in table.columns}
    assert columns == {
        "rank": ["", "1"],
        "x": ["[2]", "1"],
        "status": ["not measured", "passed"],
        "tg_tok_s (tok/s)": ["", "5"],
        "slots": ["moe=marlin sinks=?", ""],
        "reason": ["so", ""],
    }
    assert table.columns[3]._cells[1].style == "bold green"
