"""The tables and the chart of the README and the documentation equal those made from the records."""

import re

import pytest

import comparison_chart
import pages
from tables import peers


@pytest.mark.parametrize("page", pages.list_pages(), ids=lambda page: page.name)
def test_tables_are_written_from_the_records(page):
    tables = pages.list_pages()[page]
    assert pages.write(page, tables) == page.read_text(encoding="utf-8")
    assert all(len(table.splitlines()) > 2 for table in tables.values())


def test_page_without_the_markers_of_a_table_is_an_error(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    with pytest.raises(SystemExit, match="must have the markers of the table decode once, not 0 times"):
        pages.write(page, {"decode": "| a |"})


def test_chart_shows_the_figures_of_the_comparison():
    """The picture is not redrawn here: fonts may differ; its labels are text."""
    labels = set(
        re.findall(r">([\d,.]+|not measured)</text>", comparison_chart.PICTURE.read_text(encoding="utf-8"))
    )
    speeds = peers.read_speeds()
    wanted = {
        format(value, ",.0f" if kind == "requests" else ",.1f")
        for kind, panels in (
            ("requests", comparison_chart.DECODE_PANELS),
            ("tokens", comparison_chart.PROMPT_PANELS),
        )
        for number, _ in panels
        for value in speeds[(kind, number)].values()
    }
    assert wanted <= labels and "not measured" in labels
