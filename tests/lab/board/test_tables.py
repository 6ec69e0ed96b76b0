"""The tables of a board as text."""

import pytest

from firesteel.lab.board.board import make_board
from firesteel.lab.board.tables import (
    tabulate_published,
    tabulate_section,
    tabulate_targets,
    tabulate_unranked,
)
from firesteel.lab.board.targets import read_targets
from firesteel.lab.verdict import Verdict
from tests.lab import report_parts as parts
from tests.lab.board_results import bench_of, write_result


@pytest.fixture
def board(tmp_path):
    shared, own = {"VLLM_A": "1"}, {"VLLM_MXFP4_MOE_KERNEL": "gemm"}
    write_result(tmp_path, "fast", 56.0, flags=("--x", "1"), environment=shared | own)
    drafted = bench_of(48.0, noise=0.001)
    drafted["speculation"] = {"acceptance": 0.62, "length": 2.85, "by_position": [0.8, 0.44]}
    drafted["rows"][0]["doubts"] = ["the latency of 3 ms is 20 % of the 15 ms it is subtracted from"]
    write_result(tmp_path, "drafting", bench=drafted, environment=shared)
    marlin = parts.level("1.5", "failed", reason="moe: marlin ran")
    write_result(tmp_path, "marlin", levels=[marlin, parts.level("4", valid=False, bench=bench_of(90.0))])
    return make_board([tmp_path], read_targets("spark"))


def cells_of(table, row):
    return dict(zip(table.headings, table.rows[row], strict=True))


def test_configuration_shows_flags_and_the_variables_that_differ(board):
    first, second = (cells_of(tabulate_section(board.sections[0]), row)["configuration"] for row in (0, 1))
    assert (first.text, first.note) == ("1. vllm", "VLLM_MXFP4_MOE_KERNEL=gemm --x 1")
    assert (second.text, second.note) == ("2. vllm", "")


def test_figures_have_intervals_and_the_verdict_on_their_target(board):
    cells = cells_of(tabulate_section(board.sections[0]), 0)
    assert cells["tg tok/s"].text == "56" and cells["tg tok/s"].note == "55.78 to 56.22"
    assert cells["tg tok/s"].verdict is Verdict.PASSED and cells["pp tok/s"].verdict is None
    assert cells["tg @ 4k"].text == "50.4" and cells["of roof"].text == "50.0 %"
    assert cells["targets"].text == "4 of 7 met" and cells["targets"].verdict is Verdict.UNPROVEN
    missed = cells_of(tabulate_section(board.sections[0]), 1)
    assert missed["tg tok/s"].verdict is Verdict.FAILED and missed["targets"].note == "4 missed"


def test_path_answers_drafts_and_doubts_have_their_columns(board):
    first, second = (cells_of(tabulate_section(board.sections[0]), row) for row in (0, 1))
    assert first["kernel path"].text == "proven" and "moe=cutlass, dense=marlin" in first["kernel path"].note
    assert (first["answers"].text, first["drafts"].text) == ("coherent", "")
    assert second["drafts"].text == "62.0 % accepted"
    assert second["drafts"].note == "by position 80, 44 %, 2.85 tokens per step"
    assert "20 %" in second["doubts"].text and first["measured"].note.startswith("best so far, ")


def test_columns_without_a_value_are_left_out(tmp_path):
    write_result(tmp_path, "only", 50.0)
    headings = tabulate_section(make_board([tmp_path]).sections[0]).headings
    assert not {"drafts", "doubts", "targets"} & set(headings)


def test_unranked_run_says_why(board):
    cells = cells_of(tabulate_unranked(board.unranked), 0)
    assert cells["verdict"].text == "invalid" and cells["why"].text == "kernel path failed: moe: marlin ran"
    assert (cells["tg tok/s"].text, cells["tg tok/s"].note) == ("90", "pp2048 tg32")


def test_targets_and_published_figures_are_tables(board):
    rows = [cells_of(tabulate_targets(board.sections[0].best.targets), row) for row in (0, 5)]
    assert [rows[0][name].text for name in ("target", "wanted", "best so far", "verdict")] == [
        "tg of pp2048 tg32",
        "at least 52 tok/s",
        "56",
        "met",
    ]
    assert (rows[1]["verdict"].text, rows[1]["why"].text) == (
        "not judged",
        "not measured: --pp 128 --tg 32 --depths 0",
    )
    llama = cells_of(tabulate_published(board.sections[0].published), 0)
    assert (llama["engine"].text, llama["tg tok/s @ 32k"].text, llama["TTFT ms"].text) == ("llama.cpp", "41.72", "")
