"""The tables of a profile, and of the difference of two."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from firesteel.cli.tables import new_table
from firesteel.lab.profile.difference import ProfileDifference, TimeChange
from firesteel.lab.profile.profile import Profile

MAX_KERNELS = 25


def make_tables(profile: Profile) -> list[Table]:
    tables = [category_table(profile), kernel_table(profile)]
    if profile.layers:
        tables.append(layer_table(profile))
    if profile.host:
        table = new_table("host", f"ms per {profile.unit}")
        for row in profile.host:
            table.add_row(row.stage, f"{row.ms:.3f}")
        tables.append(table)
    return tables


def category_table(profile: Profile) -> Table:
    table = new_table("category", f"ms per {profile.unit}", "share", "GB/s")
    table.title = profile.source
    for row in profile.categories:
        share = "" if row.share is None else f"{row.share:.1%}"
        table.add_row(row.category, f"{row.ms:.3f}", share, _rate(row.gb_s))
    return table


def kernel_table(profile: Profile) -> Table:
    table = new_table(
        "kernel or op", "category", f"calls per {profile.unit}", f"ms per {profile.unit}", "us per call", "GB/s"
    )
    for row in profile.kernels[:MAX_KERNELS]:
        calls, ms, us = f"{row.calls:g}", f"{row.ms:.3f}", f"{row.us_a_call:.1f}"
        table.add_row(Text(row.name), row.category, calls, ms, us, _rate(row.gb_s))
    return table


def layer_table(profile: Profile) -> Table:
    names = sorted({name for row in profile.layers for name in row.categories})
    table = new_table("layer", f"ms per {profile.unit}", *names)
    for row in profile.layers:
        values = (f"{row.categories.get(name, 0.0):.3f}" for name in names)
        table.add_row(row.layer, f"{row.ms:.3f}", *values)
    return table


def _rate(gb_s: float | None) -> str:
    return "" if gb_s is None else f"{gb_s:.3g}"


def difference_tables(difference: ProfileDifference) -> list[Table]:
    categories = new_table("category", "ms before", "ms after", "change")
    categories.title = f"{difference.before} -> {difference.after}, per step"
    for row in (*difference.categories, difference.step):
        categories.add_row(row.name, *_change(row))
    kernels = new_table("kernel or op", "category", "ms before", "ms after", "change")
    for row in difference.kernels[:MAX_KERNELS]:
        kernels.add_row(Text(row.name), row.category, *_change(row))
    return [categories, kernels]


def _change(row: TimeChange) -> tuple[str, str, str]:
    return f"{row.before_ms:.3f}", f"{row.after_ms:.3f}", f"{row.change_ms:+.3f}"
