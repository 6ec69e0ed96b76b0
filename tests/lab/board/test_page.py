"""The page of a board without a browser."""

import re

from firesteel.lab.board.board import make_board
from firesteel.lab.board.page import write_board
from firesteel.lab.board.targets import read_targets
from tests.lab.board_results import write_result


def write(folder, out):
    write_board(make_board([folder], read_targets("spark")), out)
    return out.read_text()


def test_page_holds_everything_and_asks_the_network_for_nothing(tmp_path):
    for day, speed in ((1, 40.0), (3, 56.0)):
        write_result(tmp_path, f"day{day}", speed, day=day)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "result.json").write_text("{")
    page = write(tmp_path, tmp_path / "pages" / "board.html")
    assert not re.search(r'(src|href)="(?!#|data:|\.\./)', page) and "<script>" in page
    for words in (
        "2 ranked, 1 not readable",
        "llama.cpp",
        "Generation by depth",
        "days since 2026-11-01",
        "not valid JSON",
    ):
        assert words in page, words


def test_dates_link_to_the_reports_of_runs_relative_to_the_page(tmp_path):
    write_result(tmp_path, "a run", 40.0).with_name("report.html").write_text("")
    assert 'href="../a%20run/report.html"' in write(tmp_path, tmp_path / "pages" / "board.html")


def test_texts_from_results_are_escaped(tmp_path):
    write_result(tmp_path, "a", 40.0, flags=("--x", "</script><script>alert(1)</script>"))
    assert "<script>alert" not in write(tmp_path, tmp_path / "board.html")


def test_wrong_date_is_no_reason_to_fail(tmp_path):
    path = write_result(tmp_path, "a", 40.0)
    path.write_text(path.read_text().replace("2026-11-01T10:00:00Z", "yesterday"))
    write_result(tmp_path, "b", 50.0)
    assert "2 ranked" in write(tmp_path, tmp_path / "board.html")
