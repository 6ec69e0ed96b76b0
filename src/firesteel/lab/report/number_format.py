"""Numbers as a report writes them."""

from __future__ import annotations

NO_BREAK = "\u00a0"


def short(value: float) -> str:
    """Formats a number in few characters: 0.031, 4.2, 812, 12k, 3.4M."""
    for limit, divisor, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / divisor:.3g}{suffix}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def precise(value: float) -> str:
    """Formats a number with four digits or more: 27.62, 0.7226, 12,345."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def count(value: float) -> str:
    """Formats a number of tokens: 512, 4k for 4096, 32k."""
    return f"{value / 1024:.0f}k" if value >= 1024 and value % 1024 == 0 else short(value)


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def signed_percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def interval(low: float, high: float) -> str:
    return f"{precise(low)} to {precise(high)}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours} h" if hours else "", f"{minutes} min" if minutes else "", f"{rest} s" if not hours else ""]
    return NO_BREAK.join(part.replace(" ", NO_BREAK) for part in parts if part)
