"""Runs of mock servers of known speed that log as vLLM does: the board ranks them right."""

import os
import stat
import sys

import pytest

from firesteel.lab.board.board import make_board
from firesteel.lab.run import run_lab
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict
from tests.lab import mock
from tests.lab.observers import RecordingObserver
from tests.lab.path.evidence_lines import CUTLASS, MARLIN

SCRIPT = """#!{python}
import runpy
print({log!r}, flush=True)
runpy.run_path({mock!r}, run_name="__main__")
"""


@pytest.fixture
def lab_run(tmp_path, monkeypatch):
    """lab_run("fast", 400.0): runs levels 1.5 and 4 of a mock server, whose Python has a package vllm."""
    packages = tmp_path / "packages"
    (packages / "vllm").mkdir(parents=True)
    (packages / "vllm" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), *sys.path]))

    def run(name, tok_s, log=CUTLASS, **settings):
        program = tmp_path / "programs" / name / "vllm"
        program.parent.mkdir(parents=True)
        program.write_text(SCRIPT.format(python=sys.executable, log=log, mock=mock.__file__))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        spec = LabSpec(
            level="4",
            engine=f"{program} port={{port}} tg_tok_s={tok_s}",
            model="mock",
            expect="moe=cutlass",
            pp=(64,),
            tg=(16,),
            depths=(0, 128),
            streams=(1,),
            runs=3,
            warmups=0,
            ready_s=60.0,
            **settings,
        )
        return run_lab(spec, tmp_path / "results" / name, RecordingObserver())

    return run


@pytest.mark.slow
def test_proven_servers_rank_by_their_speed_and_the_one_with_marlin_is_listed(lab_run, tmp_path):
    for name, tok_s in (("slow", 50.0), ("fast", 200.0), ("middle", 100.0)):
        lab_run(name, tok_s)
    assert lab_run("marlin", 400.0, log=MARLIN, keep_going=True).any_bench is not None
    board = make_board([tmp_path / "results"])
    [section] = board.sections
    assert [ranked.entry.path.split("/")[-2] for ranked in section.ranked] == ["fast", "middle", "slow"]
    assert section.workload == "pp64 tg16" and list(section.best.entry.by_depth) == [0, 128]
    [marlin] = board.unranked
    assert marlin.verdict is Verdict.FAILED and "marlin" in marlin.fault and marlin.speed > section.best.entry.speed
