"""Tables are readable on narrow screens: cells carry their column's name, and names wrap between words."""

import pytest

from firesteel.lab.report.document import GOOD, Cell, Table
from firesteel.lab.report.html_table import write_name, write_table


def test_cells_of_a_wide_table_carry_the_name_of_their_column():
    page = write_table(Table(["workload", "tok/s", "of roof"], [["pp512", "60", Cell("80 %", bar=0.8)]]))
    assert 'class="cards"' in page and '<td data-label="tok/s" class="number">60</td>' in page
    assert '<th scope="row">pp512</th>' in page and "width:80%" in page


def test_two_columns_stay_a_table():
    assert "cards" not in write_table(Table(["name", "value"], [["driver", "580"]]))


def test_names_wrap_after_punctuation_only():
    assert write_name("mxfp4_layers=moe") == "mxfp4_<wbr>layers=<wbr>moe"


@pytest.mark.parametrize(("heat", "kind"), [(0.5, "heat better"), (-0.5, "heat worse"), (0.0, "heat")])
def test_heat_says_whether_it_is_better_or_worse(heat, kind):
    assert f'class="{kind}"' in write_table(Table(["gate", "value"], [["on", Cell("1", heat=heat)]]))


def test_verdict_has_an_icon_and_words():
    assert '<span aria-hidden="true">✓</span> seen' in write_table(
        Table(["slot", "state"], [["moe", Cell("seen", GOOD)]])
    )


def test_lines_of_a_cell_are_kept_and_escaped():
    assert "a&lt;b<br>c" in write_table(Table(["x", "y"], [["1", "a<b\nc"]]))


def test_empty_columns_are_left_out():
    table = Table(["a", "b", "c"], [["1", "", "2"], ["3", "", ""]]).without_empty_columns()
    assert list(table.headings) == ["a", "c"] and table.rows == [["1", "2"], ["3", ""]]
