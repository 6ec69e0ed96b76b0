"""Charts place numbers correctly."""

import re
import xml.etree.ElementTree as tree

import pytest

from firesteel.lab.report.charts import (
    CHARACTER,
    WIDTH,
    Bar,
    ChartLine,
    Strip,
    bar_chart,
    line_chart,
    nice_levels,
    short,
    stacked_chart,
    strip_chart,
)


@pytest.mark.parametrize("highest", [0.003, 0.9, 7, 99, 100, 4645, 1e6])
def test_levels_are_few_and_cover_zero_to_the_highest(highest):
    levels = nice_levels(highest)
    assert levels[0] == 0 and levels[-2] < highest * 1.0001 <= levels[-1] * 1.001
    assert 2 <= len(levels) <= 6


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0314, "0.0314"), (4.2, "4.2"), (812.4, "812"), (12345, "12.3k"), (3.4e6, "3.4M"), (0, "0")],
)
def test_numbers_are_short(value, text):
    assert short(value) == text


def test_bars_are_proportional_to_their_values():
    drawing = bar_chart([Bar("a", 100, "100"), Bar("b", 50, "50", limit=200)], unit="tok/s")
    widths = [float(number) for number in re.findall(r'class="c0"[^>]*width="([\d.]+)"', drawing)]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    assert drawing.count('class="limit"') == 1


def test_lines_rise_with_their_values():
    drawing = line_chart([ChartLine("up", [(0, 1), (4096, 9)])], x_title="x", y_title="y")
    (x0, y0), (x1, y1) = [
        tuple(map(float, point.split(","))) for point in re.search(r'points="([^"]+)"', drawing)[1].split()
    ]
    assert x1 > x0 and y1 < y0


def test_charts_are_well_formed_for_any_names():
    name = 'a<b & "c"'
    for drawing in (
        line_chart([ChartLine(name, [(1, 2), (512, 3)], is_dashed=True)], x_title=name, y_title=name),
        bar_chart([Bar(name, 0.0, name)], unit=name),
        strip_chart([Strip(name, list(range(1000)), [("p50", 500.0)])], unit=name),
        stacked_chart([(name, 1.0), ("gaps", 0.0)], unit=name),
    ):
        tree.fromstring(drawing)


def test_thinned_samples_keep_their_ends():
    drawing = strip_chart([Strip("a", [float(number) for number in range(5001)], [])], unit="ms")
    places = [float(number) for number in re.findall(r'cx="([\d.]+)"', drawing)]
    assert len(places) == 300 and min(places) == 12.0 and max(places) > 280


def test_names_do_not_overlap_their_labels():
    long = "pp128 tg32 @ d1024, prompt behind a cached context"
    bars = bar_chart([Bar("short", 1.0, "5377 of 369k"), Bar(long, 1.0, "5377 of 369k")], unit="tok/s")
    strips = strip_chart([Strip(long, [1.0], [("p50", 20.5), ("p90", 30.5), ("p99", 40.5)])], unit="ms")
    pieces = stacked_chart([(long * 2, 1.0)], unit="ms")
    for svg, label, whole in (
        (bars, "5377 of 369k", long),
        (strips, "p50 20.5  p90 30.5  p99 40.5", long),
        (pieces, "1 ms, 100.0 %", long * 2),
    ):
        (shown,) = re.findall(r">([^<>]*…)<", svg)
        assert whole.startswith(shown[:-1]) and len(shown) > 10 and f"<title>{whole}</title>" in svg
        assert (len(shown) + len(label)) * CHARACTER < WIDTH
    assert ">short</text>" in bars
