"""Small charts as SVG, in the colours of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from firesteel.lab.report.drawing import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Format,
    Scale,
    frame,
    head,
    legend,
    legend_rows,
    nice_levels,
    place_labels,
    svg,
    text,
    x_axis,
)
from firesteel.lab.report.number_format import percent, short

ROW = 44  # height of a row of samples
MAX_DOTS = 60
INSET = 8  # of the first and last point, so that their error bars do not reach the values of the y axis
BESIDE = 4.0  # between the error bars of two lines
CUT = 1.5  # times the highest value, beyond which intervals are cut
MAX_MARKED = 16  # points above which a line has no dots


@dataclass(frozen=True, slots=True)
class ChartPoint:
    x: float
    y: float
    interval: tuple[float, float] | None = None  # of y, drawn as an error bar
    label: str = ""


@dataclass(frozen=True, slots=True)
class ChartLine:
    name: str
    points: Sequence[ChartPoint]
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class SampleLine:
    """Samples along a line, with marks at percentiles."""

    name: str
    values: Sequence[float]
    marks: Sequence[tuple[str, float]]


def line_of(name: str, points: Sequence[tuple[float, float]], *, is_dashed: bool = False) -> ChartLine:
    return ChartLine(name, [ChartPoint(x, y) for x, y in points], is_dashed)


def line_chart(
    lines: Sequence[ChartLine],
    *,
    x_title: str,
    y_title: str,
    ticks: Sequence[float] | None = None,
    tick_format: Format = short,
    is_from_zero: bool = False,
) -> str:
    """Draws lines; the x axis is logarithmic if its ticks are positive and span more than a factor of 8."""
    points = [point for line in lines for point in line.points]
    xs = sorted({point.x for point in points}) if ticks is None else sorted(ticks)
    if is_from_zero:
        xs = nice_levels(xs[-1])
    levels = nice_levels(_find_highest(points))
    is_log = xs[0] > 0 and xs[-1] / xs[0] > 8
    x_scale = Scale(xs[0], xs[-1], LEFT + INSET, WIDTH - RIGHT - INSET, is_log)
    y_scale = Scale(0.0, levels[-1], HEIGHT - BOTTOM, TOP)
    parts = [frame(levels, y_scale, y_title), x_axis(xs, x_scale, x_title, tick_format)]
    middle = (len(lines) - 1) / 2
    parts += [
        _line(line, number, x_scale, y_scale, BESIDE * (number - middle)) for number, line in enumerate(lines)
    ]
    names = [line.name for line in lines]
    parts.append(legend(names, HEIGHT + 6))
    return svg(WIDTH, HEIGHT + 8 + 16 * len(legend_rows(names)), parts)


def _find_highest(points: Sequence[ChartPoint]) -> float:
    """Returns the highest value to draw; an interval that reaches far beyond all values is cut."""
    highest = max(point.y for point in points) or 1.0
    return max(highest, *(min(point.interval[1], CUT * highest) for point in points if point.interval), 0.0)


def sample_chart(rows: Sequence[SampleLine], *, unit: str) -> str:
    """Draws samples as dots and percentiles as vertical marks, on one axis."""
    highest = max(max(row.values) for row in rows) or 1.0
    levels = nice_levels(highest)
    scale = Scale(0.0, levels[-1], 12, WIDTH - 16)
    parts, bottom = [], len(rows) * ROW
    for level in levels:
        parts.append(f'<line class="grid" x1="{scale(level):.1f}" x2="{scale(level):.1f}" y1="0" y2="{bottom}"/>')
        parts.append(text(scale(level), bottom + 14, short(level), "tick", "middle"))
    for number, row in enumerate(rows):
        parts += _samples(row, number * ROW, scale)
    parts.append(text(12, bottom + 30, unit, "axis"))
    return svg(WIDTH, bottom + 36, parts)


def stacked_chart(pieces: Sequence[tuple[str, float]], *, unit: str) -> str:
    """Draws one bar of all pieces, with their names and shares below."""
    pieces = _add_up(pieces)
    total = sum(value for _, value in pieces) or 1.0
    parts, x = [], 8.0
    for number, (name, value) in enumerate(pieces):
        width = (WIDTH - 16) * value / total
        title = f"<title>{escape(name)}: {short(value)} {escape(unit)}</title>"
        parts.append(f'<rect class="c{number}" x="{x:.2f}" y="6" width="{width:.2f}" height="34">{title}</rect>')
        x += width
    for number, (name, value) in enumerate(pieces):
        top = 52 + 18 * number
        parts.append(f'<rect class="c{number}" x="8" y="{top}" width="10" height="10" rx="2"/>')
        parts += head(24, WIDTH - 8, top + 9, name, f"{short(value)} {unit}, {percent(value / total)}")
    return svg(WIDTH, 58 + 18 * len(pieces), parts)


def _add_up(pieces: Sequence[tuple[str, float]]) -> Sequence[tuple[str, float]]:
    """Adds up the smallest pieces if there are more of them than colours."""
    if len(pieces) <= COLOURS:
        return pieces
    small = sorted(range(len(pieces)), key=lambda number: pieces[number][1])[: len(pieces) - COLOURS + 1]
    kept = [piece for number, piece in enumerate(pieces) if number not in small]
    return [*kept, (f"{len(small)} others", sum(pieces[number][1] for number in small))]


def _samples(row: SampleLine, top: float, scale: Scale) -> list[str]:
    middle = top + 28
    words = " · ".join(f"{name} {short(value)}" for name, value in row.marks)
    parts = head(12, WIDTH - 16, top + 12, row.name, words)
    parts.append(f'<line class="base" x1="12" x2="{WIDTH - 16}" y1="{middle}" y2="{middle}"/>')
    places = dict.fromkeys(round(scale(value)) for value in _thin(row.values))
    dots = "".join(f"M{x} {middle}h0" for x in places)
    parts.append(f'<path class="dots" d="{dots}"/>')
    marks = "".join(f"M{scale(value):.1f} {middle - 8}v16" for _, value in row.marks)
    parts.append(f'<path class="mark" d="{marks}"/>')
    return parts


def _thin(values: Sequence[float]) -> list[float]:
    """Returns evenly spaced sorted values, both ends included: more dots would only cover each other."""
    ordered = sorted(values)
    if len(ordered) <= MAX_DOTS:
        return ordered
    return [ordered[round(number * (len(ordered) - 1) / (MAX_DOTS - 1))] for number in range(MAX_DOTS)]


def _line(line: ChartLine, number: int, x_scale: Scale, y_scale: Scale, beside: float) -> str:
    """Draws a line with its error bars `beside` its points, where they do not cover those of other lines.

    From the last colour on, lines are dashed as well, to differ from the first ones.
    """
    colour = f"c{number % COLOURS}"
    dashes = " dashed" if line.is_dashed or number >= COLOURS else ""
    places = [(x_scale(point.x), y_scale(point.y)) for point in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline class="line {colour}{dashes}" points="{path}"/>']
    if line.is_dashed or len(places) > MAX_MARKED:
        return parts[0]
    for (x, y), point in zip(places, line.points, strict=True):
        said = f"{short(point.x)}, {short(point.y)}"
        if point.interval is not None:
            parts.append(_error_bar(point.interval, x + beside, y_scale, colour))
            said += f" ({short(point.interval[0])} to {short(point.interval[1])})"
        title = f"<title>{escape(line.name)}: {said}</title>"
        parts.append(f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{title}</circle>')
    if any(point.label for point in line.points):
        parts.append(place_labels(places, [point.label for point in line.points]))
    return "".join(parts)


def _error_bar(interval: tuple[float, float], x: float, scale: Scale, colour: str) -> str:
    """Draws an interval; an end beyond the axis has no cap."""
    ends = [min(end, scale.high) for end in interval]
    caps = "".join(f"M{x - 4:.1f} {scale(end):.1f}h8" for end in interval if end <= scale.high)
    return f'<path class="error {colour}" d="M{x:.1f} {scale(ends[0]):.1f}V{scale(ends[1]):.1f}{caps}"/>'
