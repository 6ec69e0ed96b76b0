"""Small charts as SVG, in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 380, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 24, 38
ROW = 26  # height of a bar or strip
COLOURS = 6  # the page's classes c0 to c5
CHARACTER = 6.2  # average width


@dataclass(frozen=True, slots=True)
class ChartLine:
    name: str
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float
    label: str
    limit: float | None = None  # drawn as a mark
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Strip:
    """Samples along a line, with marks at some percentiles."""

    name: str
    values: Sequence[float]
    marks: Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Scale:
    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log2(each) if self.is_log else each for each in (self.low, self.high, value))
        return self.start + (self.end - self.start) * ((value - low) / ((high - low) or 1.0))


def line_chart(
    lines: Sequence[ChartLine], *, x_title: str, y_title: str, ticks: Sequence[float] | None = None
) -> str:
    """Draws lines; the x axis is logarithmic if its ticks are positive and span more than a factor of 8."""
    points = [point for line in lines for point in line.points]
    xs = sorted({x for x, _ in points}) if ticks is None else sorted(ticks)
    is_log = xs[0] > 0 and xs[-1] / xs[0] > 8
    highest = max(y for _, y in points) or 1.0
    levels = nice_levels(highest)
    x_scale = Scale(xs[0], xs[-1], LEFT, WIDTH - RIGHT, is_log)
    y_scale = Scale(0.0, levels[-1], HEIGHT - BOTTOM, TOP)
    shown = _legend_height(lines)
    parts = [_grid(levels, y_scale), _x_axis(_sparse(xs, x_scale), x_scale, x_title, HEIGHT - BOTTOM)]
    parts.append(_text(4, 10, y_title, "axis"))
    parts += [_polyline(line, number, x_scale, y_scale) for number, line in enumerate(lines)]
    parts.append(_legend([line.name for line in lines], HEIGHT + 6))
    return _svg(WIDTH, HEIGHT + shown, parts)


def bar_chart(bars: Sequence[Bar], *, unit: str) -> str:
    """Draws horizontal bars with the name above each."""
    highest = max(max(bar.value, bar.limit or 0.0) for bar in bars) or 1.0
    scale = Scale(0.0, highest, 8, WIDTH - 8)
    parts = []
    for number, bar in enumerate(bars):
        top = number * (ROW + 14)
        parts += _head(8, WIDTH - 8, top + 12, bar.name, bar.label)
        parts.append(f'<rect class="track" x="8" y="{top + 17}" width="{WIDTH - 16}" height="12" rx="3"/>')
        width = max(scale(bar.value) - 8, 1.0)
        parts.append(f'<rect class="c{bar.colour}" x="8" y="{top + 17}" width="{width:.1f}" height="12" rx="3"/>')
        if bar.limit is not None:
            x = scale(bar.limit)
            parts.append(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{top + 14}" y2="{top + 32}"/>')
    height = len(bars) * (ROW + 14)
    parts.append(_text(8, height + 12, unit, "axis"))
    return _svg(WIDTH, height + 18, parts)


def strip_chart(strips: Sequence[Strip], *, unit: str) -> str:
    """Draws every sample as a dot and percentiles as vertical marks, on one axis."""
    highest = max(max(strip.values) for strip in strips) or 1.0
    levels = nice_levels(highest)
    scale = Scale(0.0, levels[-1], 12, WIDTH - 16)
    parts, bottom = [], len(strips) * (ROW + 18)
    for level in levels:
        parts.append(f'<line class="grid" x1="{scale(level):.1f}" x2="{scale(level):.1f}" y1="0" y2="{bottom}"/>')
        parts.append(_text(scale(level), bottom + 14, short(level), "tick", "middle"))
    for number, strip in enumerate(strips):
        parts += _strip(strip, number, scale)
    parts.append(_text(12, bottom + 30, unit, "axis"))
    return _svg(WIDTH, bottom + 36, parts)


def stacked_chart(pieces: Sequence[tuple[str, float]], *, unit: str) -> str:
    """Draws one bar of all pieces, with their names and shares below."""
    total = sum(value for _, value in pieces) or 1.0
    parts, x = [], 8.0
    for number, (name, value) in enumerate(pieces):
        width = (WIDTH - 16) * value / total
        title = f"<title>{escape(name)}: {short(value)} {escape(unit)}</title>"
        colour = f"c{number % COLOURS}"
        parts.append(f'<rect class="{colour}" x="{x:.2f}" y="6" width="{width:.2f}" height="34">{title}</rect>')
        x += width
    for number, (name, value) in enumerate(pieces):
        top = 52 + 18 * number
        parts.append(f'<rect class="c{number % COLOURS}" x="8" y="{top}" width="10" height="10" rx="2"/>')
        parts += _head(24, WIDTH - 8, top + 9, name, f"{short(value)} {unit}, {100 * value / total:.1f} %")
    return _svg(WIDTH, 58 + 18 * len(pieces), parts)


def nice_levels(highest: float, count: int = 4) -> list[float]:
    """Returns round numbers from zero up to at least the highest value."""
    raw = highest / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    return [step * number for number in range(math.ceil(highest / step - 1e-9) + 1)]


def short(value: float) -> str:
    """Formats a number in few characters: 0.031, 4.2, 812, 12k, 3.4M."""
    for limit, divisor, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / divisor:.3g}{suffix}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _head(left: float, right: float, y: float, name: str, label: str) -> list[str]:
    """Writes a name, and a label at the right; a name that would overlap is cut and has a tooltip."""
    room = int((right - left) / CHARACTER) - len(label) - 1
    shown = name if len(name) <= room else f"{name[: max(room - 1, 0)].rstrip(' ,')}…"
    title = "" if shown == name else f"<title>{escape(name)}</title>"
    return [f"<g>{title}{_text(left, y, shown, 'name')}</g>", _text(right, y, label, "label", "end")]


def _strip(strip: Strip, number: int, scale: Scale) -> list[str]:
    top = number * (ROW + 18)
    middle = top + 28
    words = "  ".join(f"{name} {short(value)}" for name, value in strip.marks)
    parts = _head(12, WIDTH - 16, top + 12, strip.name, words)
    parts.append(f'<line class="base" x1="12" x2="{WIDTH - 16}" y1="{middle}" y2="{middle}"/>')
    for value in _thin(strip.values):
        parts.append(f'<circle class="dot c{number % COLOURS}" cx="{scale(value):.1f}" cy="{middle}" r="3.5"/>')
    for name, value in strip.marks:
        x = scale(value)
        parts.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{middle - 8}" y2="{middle + 8}">'
            f"<title>{escape(name)} {short(value)}</title></line>"
        )
    return parts


def _thin(values: Sequence[float], most: int = 300) -> list[float]:
    """Returns evenly spaced sorted values, both ends included: more dots would only cover each other."""
    ordered = sorted(values)
    if len(ordered) <= most:
        return ordered
    return [ordered[round(number * (len(ordered) - 1) / (most - 1))] for number in range(most)]


def _sparse(xs: Sequence[float], scale: Scale) -> list[float]:
    """Returns the ticks whose texts do not overlap."""
    kept: list[float] = []
    for x in xs:
        if not kept or scale(x) - scale(kept[-1]) > CHARACTER * (len(short(x)) + 2):
            kept.append(x)
    return kept


def _grid(levels: Sequence[float], scale: Scale) -> str:
    lines = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{scale(level):.1f}" y2="{scale(level):.1f}"/>'
        + _text(LEFT - 6, scale(level) + 4, short(level), "tick", "end")
        for level in levels
    ]
    return "".join(lines)


def _x_axis(ticks: Sequence[float], scale: Scale, title: str, bottom: float) -> str:
    marks = "".join(_text(scale(tick), bottom + 15, short(tick), "tick", "middle") for tick in ticks)
    return marks + _text((LEFT + WIDTH - RIGHT) / 2, bottom + 31, title, "axis", "middle")


def _polyline(line: ChartLine, number: int, x_scale: Scale, y_scale: Scale) -> str:
    colour = f"c{number % COLOURS}"
    dashes = " dashed" if line.is_dashed else ""
    places = [(x_scale(x), y_scale(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = ""
    if not line.is_dashed and len(places) <= 40:
        titles = [f"<title>{escape(line.name)}: {short(x)}, {short(y)}</title>" for x, y in line.points]
        dots = "".join(
            f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{title}</circle>'
            for (x, y), title in zip(places, titles, strict=True)
        )
    return f'<polyline class="line {colour}{dashes}" points="{path}"/>{dots}'


def _legend_rows(names: Sequence[str]) -> list[list[tuple[int, str]]]:
    rows: list[list[tuple[int, str]]] = [[]]
    x = 0.0
    for number, name in enumerate(names):
        width = 22 + CHARACTER * len(name)
        if x + width > WIDTH - 16 and rows[-1]:
            rows.append([])
            x = 0.0
        rows[-1].append((number, name))
        x += width
    return rows


def _legend_height(lines: Sequence[ChartLine]) -> int:
    return 8 + 16 * len(_legend_rows([line.name for line in lines]))


def _legend(names: Sequence[str], top: float) -> str:
    parts = []
    for row, entries in enumerate(_legend_rows(names)):
        x, y = 8.0, top + 16 * row
        for number, name in entries:
            parts.append(f'<rect class="c{number % COLOURS}" x="{x:.0f}" y="{y - 4:.0f}" width="10" height="10"/>')
            parts.append(_text(x + 14, y + 5, name, "label"))
            x += 22 + CHARACTER * len(name)
    return "".join(parts)


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img">{"".join(parts)}</svg>'
