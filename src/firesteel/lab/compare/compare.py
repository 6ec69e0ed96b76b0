"""Holds one result to an earlier one: what is slower or larger, beyond the spread of the runs; measures nothing.

A change is called slower where it passes the threshold and its interval leaves no room for "the same". The
intervals hold together: with 95 % for each of twenty figures, every third comparison of equals would find a loss.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from firesteel.errors import UserError
from firesteel.lab.bench.series import HIGHER
from firesteel.lab.compare.interval import estimate, share_confidence
from firesteel.lab.level import GATE
from firesteel.lab.memory.gpu import WHOLE

FIGURES = ("pp_tok_s", "tg_tok_s", "ttft_ms", "tpot_ms")
THRESHOLD, MEMORY_GB = 0.03, 1.0
OF_REQUESTS = ("ttft_ms", "tpot_ms")  # with a sample of every request, not of every run
GB = 1e9
SLOWER, FASTER, SAME, UNCLEAR = "slower", "faster", "same", "unclear"
MORE_MEMORY, LESS_MEMORY = "more memory", "less memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    name: str  # of the workload
    figure: str
    unit: str
    before: float
    after: float
    change: float  # share of before: 0.05 is 5 % more
    low: float  # ends of its interval; infinite where one sample cannot say
    high: float
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    rows: list[Change]
    threshold: float
    memory_gb: float
    missing: list[str] = field(default_factory=list)  # measured before and not now
    differences: list[str] = field(default_factory=list)  # of the surroundings

    @property
    def regressions(self) -> list[Change]:
        return [row for row in self.rows if row.verdict in (SLOWER, MORE_MEMORY)]

    def in_words(self) -> str:
        found = [_in_words(row) for row in self.regressions]
        if found:
            return f"{len(found)} of {len(self.rows)} figures are worse: {'; '.join(found)}"
        unclear = sum(row.verdict == UNCLEAR for row in self.rows)
        rest = f"; {unclear} are unclear for want of runs" if unclear else ""
        limits = f"{100 * self.threshold:g} % or {self.memory_gb:g} GB"
        return f"none of {len(self.rows)} figures is worse by {limits}{rest}"

    def as_dict(self) -> dict[str, Any]:
        rows = [{**asdict(row), "low": _finite(row.low), "high": _finite(row.high)} for row in self.rows]
        return {
            "words": self.in_words(), "threshold": self.threshold, "memory_gb": self.memory_gb, "rows": rows,
            "regressions": [_in_words(row) for row in self.regressions], "missing": self.missing,
            "differences": self.differences,
        }  # fmt: skip


def compare(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    threshold: float = THRESHOLD,
    memory_gb: float = MEMORY_GB,
) -> Comparison:
    """Of two results of the lab; each may be a result.json's content or a benchmark's alone."""
    old, new = find_bench(before), find_bench(after)
    old_rows, new_rows = ({row["name"]: row for row in bench["rows"]} for bench in (old, new))
    shared = [name for name in old_rows if name in new_rows]
    if not shared:
        raise UserError(
            f"the results share no workload: one has {', '.join(old_rows) or 'none'}, the other "
            f"{', '.join(new_rows) or 'none'}; measure both with the same plan"
        )
    pairs = [
        (figure, old_rows[name], new_rows[name])
        for name in shared
        for figure in FIGURES
        if figure in old_rows[name]["series"] and figure in new_rows[name]["series"]
    ]
    confidence = share_confidence(len(pairs))
    changes = [_compare_series(figure, was, now, threshold, confidence) for figure, was, now in pairs]
    return Comparison(
        rows=changes + _compare_memory(old, new, memory_gb), threshold=threshold, memory_gb=memory_gb,
        missing=[name for name in old_rows if name not in new_rows],
        differences=find_differences(before, after) + _differing_scopes(old, new),
    )  # fmt: skip


def find_bench(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a result's level 4, or the whole where it is a benchmark; one that does not count is refused."""
    if "rows" in result:
        return result
    refuse_invalid(result)
    for level in (result, *(one.get("figures") or {} for one in result.get("levels") or ())):
        found = level.get("bench")
        if isinstance(found, Mapping) and "rows" in found:
            return found
    raise UserError("the result holds no benchmark: run level 4, as `firesteel lab run --mode benchmark` does")


def refuse_invalid(result: Mapping[str, Any]) -> None:
    """Figures of another kernel path than the one asked for say nothing about it."""
    levels = result.get("levels") or ()
    if all(one.get("valid", True) for one in levels if "bench" in (one.get("figures") or {})):
        return
    reason = next((one.get("reason") for one in levels if one.get("level") == GATE), "its reason was not kept")
    raise UserError(
        f"the benchmark of {name_run(result)} does not count, its kernel path (level {GATE}) failed: {reason}; "
        "measure it again on the path that is meant (--path names it)"
    )


def name_run(result: Mapping[str, Any]) -> str:
    order = result.get("order") or {}
    what = [order.get("url") or order.get("engine") or "a run", order.get("model"), result.get("time_utc")]
    return ", ".join(str(one) for one in what if one)


def find_visible(bench: Mapping[str, Any]) -> float | None:
    """The change that half of the figures would show, were a second run as spread as this one."""
    samples = [by_run(row, figure) for row in bench["rows"] for figure in FIGURES if figure in row["series"]]
    confidence = share_confidence(len(samples))
    reaches = [estimate(values, values, confidence)[2] for values in samples if len(values) > 1]
    return statistics.median(reaches) if reaches else None


def by_run(row: Mapping[str, Any], figure: str) -> list[float]:
    """One sample a run: requests of one crowd share its fate, and counted apart they would claim too much."""
    values = list(row["series"][figure]["values"])
    crowd = (row.get("workload") or {}).get("concurrency", 1) if figure in OF_REQUESTS else 1
    if len(values) % crowd:
        return [statistics.fmean(values)]  # some failed: which belong together is not known
    return [statistics.fmean(values[at : at + crowd]) for at in range(0, len(values), crowd)]


def find_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """In words: what of the surroundings changed, and could be the cause."""
    old, new = (result.get("surroundings") or {} for result in (before, after))
    fields = ("device", "capability", "commit", "packages_hash", "environment")
    pairs = [(name, old.get(name), new.get(name)) for name in fields]
    versions = [one.get("versions") or {} for one in (old, new)]
    pairs += [(f"version of {name}", versions[0].get(name), versions[1].get(name)) for name in versions[0]]
    return [f"{name}: {was} before, {now} now" for name, was, now in pairs if was != now and old and new]


def _compare_series(
    figure: str, before: Mapping[str, Any], after: Mapping[str, Any], threshold: float, confidence: float
) -> Change:
    old, new = before["series"][figure], after["series"][figure]
    change, low, high = estimate(by_run(before, figure), by_run(after, figure), confidence)
    return Change(
        name=before["name"], figure=figure, unit=old["unit"], before=statistics.median(old["values"]),
        after=statistics.median(new["values"]), change=change, low=low, high=high,
        verdict=judge(change, low, high, threshold, is_higher_better=old["better"] == HIGHER),
    )  # fmt: skip


def judge(change: float, low: float, high: float, threshold: float, *, is_higher_better: bool) -> str:
    if not is_higher_better:
        change, low, high = -change, -high, -low
    if abs(change) < threshold:
        return SAME
    if low <= 0.0 <= high:
        return UNCLEAR
    return SLOWER if change < 0 else FASTER


def _compare_memory(old: Mapping[str, Any], new: Mapping[str, Any], memory_gb: float) -> list[Change]:
    found = []
    for field_name, name in (("peak_memory_bytes", "host"), ("peak_gpu_bytes", "GPU")):
        was, now = ((bench.get("usage") or {}).get(field_name) for bench in (old, new))
        if was and now and (name == "host" or not _differing_scopes(old, new)):
            grown = (now - was) / GB
            verdict = MORE_MEMORY if grown > memory_gb else LESS_MEMORY if -grown > memory_gb else SAME
            share = now / was - 1
            found.append(
                Change(name=f"peak memory, {name}", figure="memory", unit="GB", before=was / GB, after=now / GB,
                       change=share, low=share, high=share, verdict=verdict)
            )  # fmt: skip
    return found


def _differing_scopes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """In words, where memory of the GPU is not of the same users in both; older results had it of all."""
    usages = [bench.get("usage") or {} for bench in (old, new)]
    was, now = (one.get("gpu_scope") or WHOLE for one in usages)
    told = all(one.get("peak_gpu_bytes") for one in usages)
    return [f"memory of the GPU: of {was} before, of {now} now, so not compared"] if told and was != now else []


def _in_words(row: Change) -> str:
    if row.figure == "memory":
        return f"{row.name}: {row.after - row.before:+.2f} GB"
    return f"{row.name} {row.figure}: {100 * row.change:+.1f} % ({100 * row.low:+.1f} to {100 * row.high:+.1f} %)"


def _finite(value: float) -> float:
    """JSON has no infinity; an interval of a thousand percent says the same."""
    return max(-1.0, min(10.0, value))
