"""The report in Chromium: no errors, no requests, nothing wider than the screen, light and dark."""

import importlib.util
from pathlib import Path

import pytest

from firesteel.lab.report.report import write_report
from tests.lab import report_parts as parts

HERE = Path(__file__).parent
pytestmark = pytest.mark.browser


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = load(HERE.parents[1] / "server" / "browser.py").Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path, _ = write_report(parts.result(), tmp_path_factory.mktemp("report"))
    return path.as_uri()


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [400, 1600])
def test_page_fits_and_makes_no_requests(browser, page, width, is_dark):
    browser.open(page, width=width, is_dark=is_dark)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert not browser.errors
    assert all(url.startswith(("file:", "data:")) for url in browser.requests)
    back = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back[4:-1].split(","))) < 200) == is_dark


def test_texts_stay_inside_their_chart(browser, page):
    browser.open(page, width=400)
    outside = browser.run("""[...document.querySelectorAll('svg text')].filter(one => {
        const text = one.getBoundingClientRect(), drawing = one.closest('svg').getBoundingClientRect();
        return text.width && (text.right > drawing.right + 2 || text.left < drawing.left - 2);
    }).map(one => one.textContent)""")
    assert outside == []


def test_raw_data_unfolds_within_the_screen(browser, page):
    browser.open(page, width=400)
    shown = "document.querySelector('details pre').checkVisibility()"
    assert not browser.run(shown)
    browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.run(shown)
    assert browser.run("document.documentElement.scrollWidth") <= 400
