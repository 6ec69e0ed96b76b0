"""Charts place numbers correctly."""

import re
import xml.etree.ElementTree as tree

import pytest

from firesteel.lab.report.charts import (
    ChartLine,
    ChartPoint,
    SampleLine,
    line_chart,
    line_of,
    sample_chart,
    stacked_chart,
)
from firesteel.lab.report.drawing import CHARACTER, COLOURS, WIDTH


def places(drawing):
    (points,) = re.findall(r'points="([^"]+)"', drawing)
    return [tuple(map(float, point.split(","))) for point in points.split()]


def test_lines_rise_with_their_values():
    (x0, y0), (x1, y1) = places(line_chart([line_of("up", [(0, 1), (4096, 9)])], x_title="x", y_title="y"))
    assert x1 > x0 and y1 < y0


def test_error_bars_span_their_intervals():
    points = [ChartPoint(0, 10, (8, 12)), ChartPoint(1, 20)]
    drawing = line_chart([ChartLine("a", points)], x_title="x", y_title="y")
    (bar,) = re.findall(r'class="error c0" d="M[\d.]+ ([\d.]+)V([\d.]+)', drawing)
    low, high = map(float, bar)
    (_, y0), (_, y1) = places(drawing)
    assert (low + high) / 2 == pytest.approx(y0, abs=0.11) and low - high == pytest.approx(0.4 * (y0 - y1), abs=0.2)
    assert "0, 10 (8 to 12)" in drawing


def test_interval_far_beyond_all_values_is_cut_and_has_one_cap():
    drawing = line_chart(
        [ChartLine("a", [ChartPoint(0, 10, (1, 900)), ChartPoint(1, 10)])], x_title="x", y_title="y"
    )
    assert re.findall(r'<text class="tick"[^>]*>([\d.]+)</text>', drawing)[-3:] != ["1000"]
    assert drawing.count("h8") == 1


def test_error_bars_of_two_lines_do_not_cover_each_other():
    lines = [ChartLine(name, [ChartPoint(0, 10, (8, 12)), ChartPoint(1, 10, (8, 12))]) for name in "ab"]
    drawing = line_chart(lines, x_title="x", y_title="y")
    starts = [float(x) for x in re.findall(r'class="error[^"]*" d="M([\d.]+)', drawing)]
    assert len(starts) == len(set(starts)) == 4


def test_charts_are_well_formed_for_any_names():
    name = 'a<b & "c"'
    labelled = ChartLine(name, [ChartPoint(1, 2, (1, 3), name), ChartPoint(512, 3, label=name)])
    for drawing in (
        line_chart([line_of(name, [(1, 2), (512, 3)], is_dashed=True)], x_title=name, y_title=name),
        line_chart([labelled], x_title=name, y_title=name),
        sample_chart([SampleLine(name, list(range(1000)), [("p50", 500.0)])], unit=name),
        stacked_chart([(name, 1.0), ("gaps", 0.0)], unit=name),
    ):
        tree.fromstring(drawing)


def test_thinned_samples_keep_their_ends():
    drawing = sample_chart([SampleLine("a", [float(number) for number in range(5001)], [])], unit="ms")
    (dots,) = re.findall(r'class="dots" d="([^"]+)"', drawing)
    positions = [int(x) for x in re.findall(r"M(\d+) ", dots)]
    assert len(positions) == 60 and min(positions) == 12 and max(positions) > 280


def test_names_do_not_overlap_their_labels():
    long = "pp128 tg32 @ d1024, prompt behind a cached context"
    rows = sample_chart([SampleLine(long, [1.0], [("p50", 20.5), ("p90", 30.5), ("p99", 40.5)])], unit="ms")
    pieces = stacked_chart([(long * 2, 1.0), ("short", 1.0)], unit="ms")
    for svg, label, whole in ((rows, "p50 20.5 · p90 30.5 · p99 40.5", long), (pieces, "1 ms, 50.0 %", long * 2)):
        (shown,) = re.findall(r">([^<>]*…)<", svg)
        assert whole.startswith(shown[:-1]) and len(shown) > 10 and f"<title>{whole}</title>" in svg
        assert (len(shown) + len(label)) * CHARACTER < WIDTH
    assert ">short</text>" in pieces


def test_no_two_pieces_have_the_same_colour():
    pieces = [(f"category {number}", 20.0 - number) for number in range(COLOURS + 3)]
    drawing = stacked_chart(pieces, unit="ms")
    colours = re.findall(r'<rect class="(c\d+)"[^>]*height="34"', drawing)
    assert len(colours) == len(set(colours)) == COLOURS
    assert ">4 others</text>" in drawing and "category 10<" in drawing and "category 11<" not in drawing


def test_lines_beyond_the_colours_are_dashed():
    lines = [line_of(str(number), [(0, number + 1), (1, 2)]) for number in range(COLOURS + 1)]
    drawing = line_chart(lines, x_title="x", y_title="y")
    assert re.findall(r'class="line (c\d+) dashed"', drawing) == ["c0"]
