"""Parts of SVG drawings: scales, axes, legends and texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from firesteel.lab.report.number_format import short

WIDTH, HEIGHT = 380, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 24, 38
COLOURS = 12  # the page's classes c0 to c11
CHARACTER = 6.4  # average width
ENTRY = 7.0  # width of a character in a legend, with the space to the next entry

Format = Callable[[float], str]


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


def nice_levels(highest: float, count: int = 4) -> list[float]:
    """Returns round numbers from zero up to at least the highest value."""
    raw = highest / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    return [step * number for number in range(math.ceil(highest / step - 1e-9) + 1)]


def frame(levels: Sequence[float], y_scale: Scale, y_title: str) -> str:
    """Draws horizontal lines with their values, and the title above them."""
    lines = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_scale(level):.1f}" y2="{y_scale(level):.1f}"/>'
        + text(LEFT - 6, y_scale(level) + 4, short(level), "tick", "end")
        for level in levels
    ]
    return "".join(lines) + text(4, 10, y_title, "axis")


def x_axis(ticks: Sequence[float], scale: Scale, title: str, tick_format: Format) -> str:
    bottom = HEIGHT - BOTTOM
    marks = "".join(
        text(scale(tick), bottom + 17, tick_format(tick), "tick", "middle")
        for tick in select_ticks(ticks, scale, tick_format)
    )
    return marks + text((LEFT + WIDTH - RIGHT) / 2, bottom + 33, title, "axis", "middle")


def select_ticks(ticks: Sequence[float], scale: Scale, tick_format: Format) -> list[float]:
    """Returns the ticks whose texts do not overlap; the first and the last are preferred."""
    kept: list[float] = []
    for tick in dict.fromkeys([*ticks[:1], *ticks[-1:], *ticks[1:-1]]):
        widths = [CHARACTER * (len(tick_format(tick)) + len(tick_format(other))) / 2 + 6 for other in kept]
        if all(abs(scale(tick) - scale(other)) > width for other, width in zip(kept, widths, strict=True)):
            kept.append(tick)
    return sorted(kept)


def head(left: float, right: float, y: float, name: str, label: str) -> list[str]:
    """Writes a name, and a label at the right; a name that would overlap is cut and has a tooltip."""
    room = int((right - left) / CHARACTER) - len(label) - 1
    shown = name if len(name) <= room else f"{name[: max(room - 1, 0)].rstrip(' ,')}…"
    title = "" if shown == name else f"<title>{escape(name)}</title>"
    return [f"<g>{title}{text(left, y, shown, 'name')}</g>", text(right, y, label, "label", "end")]


def legend_rows(names: Sequence[str]) -> list[list[tuple[int, str]]]:
    rows: list[list[tuple[int, str]]] = [[]]
    x = 0.0
    for number, name in enumerate(names):
        width = 22 + ENTRY * len(name)
        if x + width > WIDTH - 16 and rows[-1]:
            rows.append([])
            x = 0.0
        rows[-1].append((number, name))
        x += width
    return rows


def legend(names: Sequence[str], top: float) -> str:
    parts = []
    for row, entries in enumerate(legend_rows(names)):
        x, y = 8.0, top + 16 * row
        for number, name in entries:
            parts.append(f'<rect class="c{number % COLOURS}" x="{x:.0f}" y="{y - 4:.0f}" width="10" height="10"/>')
            parts.append(text(x + 14, y + 5, name, "label"))
            x += 22 + ENTRY * len(name)
    return "".join(parts)


def place_labels(points: Sequence[tuple[float, float]], labels: Sequence[str]) -> str:
    """Writes a label beside each point, where it covers no other; one without room is left out."""
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in points]
    parts = []
    for (x, y), label in zip(points, labels, strict=True):
        width = CHARACTER * len(label)
        for left, bottom in (
            (x + 8, y + 4),
            (x - width / 2, y - 9),
            (x - width / 2, y + 18),
            (x - width - 8, y + 4),
        ):
            box = (left, bottom - 10, left + width, bottom + 2)
            if left > LEFT and left + width < WIDTH and not any(overlap(box, other) for other in taken):
                taken.append(box)
                parts.append(text(left, bottom, label, "label"))
                break
    return "".join(parts)


Box = tuple[float, float, float, float]  # left, top, right, bottom


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    anchored = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{anchored}>{escape(words)}</text>'


def svg(width: float, height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img">{"".join(parts)}</svg>'
