"""Checks of setting values: each returns what is wrong with a value, or None."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

LAYERS = ("moe", "qkv", "o", "lm_head")  # layers whose weights may be in MXFP4
Check = Callable[[Any], str | None]


def at_least(least: float) -> Check:
    return lambda value: None if value >= least else f"must be at least {least}"


def between(least: float, most: float) -> Check:
    return lambda value: None if least <= value <= most else f"must be from {least} to {most}"


def power_of_two(value: int) -> str | None:
    return None if value > 0 and value & (value - 1) == 0 else "must be a power of two"


def one_of(*choices: str) -> Check:
    return lambda value: None if value in choices else f"must be one of {', '.join(choices)}"


def device_name(value: str) -> str | None:
    return None if re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", value) else "must be auto, cpu, cuda or cuda:N"


def date_word(value: str) -> str | None:
    if value in ("none", "today"):
        return None
    try:
        datetime.date.fromisoformat(value)
    except ValueError:
        return "must be none, today or a date like 2026-01-31"
    return None


def pin_list(value: str) -> str | None:
    bad = [pin for pin in value.split(",") if pin and pin.count("=") != 1]
    return f"must be OP=IMPLEMENTATION pairs joined by commas, not {bad[0]!r}" if bad else None


def requirement_list(value: str) -> str | None:
    parts = [part.strip() for part in value.split(",") if part.strip()]
    bad = [part for part in parts if not re.fullmatch(r"\w+=[\w:. -]+(@[\w-]+)?", part)]
    return f"must be OP=IMPLEMENTATION[:VARIANT][@VERDICT] joined by commas, not {bad[0]!r}" if bad else None


def tile_size(value: str) -> str | None:
    sizes = re.fullmatch(r"([0-9]+)x([0-9]+)", value)
    if value == "auto" or (
        sizes and all(int(size) >= 16 and not power_of_two(int(size)) for size in sizes.groups())
    ):
        return None
    return "must be auto or ROWSxCOLUMNS, both powers of two and at least 16, such as 64x128"


def parse_origins(value: str) -> tuple[str, ...]:
    """Splits origins of web pages: joined by commas, or a JSON list as vLLM takes it."""
    return tuple(part for part in re.split(r"[\s,\[\]\"']+", value) if part)


def origin_list(value: str) -> str | None:
    origins = [origin for origin in parse_origins(value) if origin != "*"]
    bad = [origin for origin in origins if not re.fullmatch(r"https?://[^/?#@]+", origin)]
    return f"must be origins like http://localhost:3000 joined by commas, or *, not {bad[0]!r}" if bad else None


def parse_hosts(value: str) -> tuple[str, ...]:
    return tuple(host.strip() for host in value.split(",") if host.strip())


def host_list(value: str) -> str | None:
    bad = [host for host in parse_hosts(value) if not re.fullmatch(r"\*|(\*\.)?[\w.-]+|\[[0-9a-fA-F:.]+\]", host)]
    return f"must be names like llm.example, *.example or *, joined by commas, not {bad[0]!r}" if bad else None


def layer_list(value: str) -> str | None:
    bad = [name for name in parse_layers(value) if name not in LAYERS]
    return f"must be some of {', '.join(LAYERS)} joined by commas, or all, not {bad[0]!r}" if bad else None


def parse_layers(value: str) -> tuple[str, ...]:
    """Returns the layers that "moe,qkv" or "all" names, in the order of LAYERS; unknown names come last."""
    given = [name.strip() for name in value.split(",") if name.strip()]
    if given == ["all"]:
        return LAYERS
    return (*(name for name in LAYERS if name in given), *(name for name in given if name not in LAYERS))
