"""The board in Chromium: it fits, asks for nothing, and its tables can be sorted by heading or list."""

import pytest

from firesteel.lab.board.board import make_board
from firesteel.lab.board.page import write_board
from firesteel.lab.board.targets import read_targets
from tests.lab import report_parts as parts
from tests.lab.board_results import bench_of, write_result

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for name, speed, day in (("middle", 50.0, 1), ("fast", 1056.0, 2), ("slow", 9.0, 3)):
        write_result(folder, name, speed, day=day, flags=("--speculative-config", '{"method": "eagle3"}'))
    levels = [parts.level("1.5", "failed", reason="marlin ran"), parts.level("4", bench=bench_of(99.0))]
    write_result(folder, "marlin", levels=levels)
    write_board(make_board([folder], read_targets("spark")), folder / "board.html")
    return (folder / "board.html").as_uri()


ROWS = "[...document.querySelector('table').tBodies[0].rows].map((row) => row.cells[0].textContent[0]).join('')"
HEADING = "document.querySelectorAll('table')[0].tHead.rows[0].cells[1]"


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [400, 1600])
def test_page_fits_and_makes_no_requests(browser, page, width, is_dark):
    browser.open(page, width=width, is_dark=is_dark)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert not browser.errors and all(url.startswith(("file:", "data:")) for url in browser.requests)


def test_clicks_on_a_heading_sort_by_its_numbers_in_both_directions(browser, page):
    browser.open(page, width=1600)
    assert browser.run(ROWS) == "123"
    browser.run(f"{HEADING}.querySelector('button').click()")
    assert browser.run(ROWS) == "123" and browser.run(f"{HEADING}.ariaSort") == "descending"
    browser.run(f"{HEADING}.querySelector('button').click()")
    assert browser.run(ROWS) == "321" and browser.run(f"{HEADING}.ariaSort") == "ascending"


def test_narrow_screen_sorts_by_a_list(browser, page):
    browser.open(page, width=400)
    assert browser.run("document.querySelector('label.sort').checkVisibility()")
    choose = "const list = document.querySelector('label.sort select'); list.value = '{}'; "
    browser.run(f"{{ {choose.format(0)} list.dispatchEvent(new Event('change')) }}")
    browser.run(f"{{ {choose.format(0)} list.dispatchEvent(new Event('change')) }}")
    assert browser.run(ROWS) == "321"
    browser.open(page, width=1600)
    assert not browser.run("document.querySelector('label.sort').checkVisibility()")
