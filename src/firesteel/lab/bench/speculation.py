"""Acceptance of drafted tokens during a benchmark, by the server's /metrics in Prometheus' text format.

vLLM and firesteel count drafts, drafted and accepted tokens, and accepted ones by position, under vLLM's names; the
differences of these counters are those of the benchmark. firesteel also states the seconds spent on drafting and an
estimate of those saved. SGLang, started with --enable-metrics, has gauges of its latest steps only. llama.cpp has
no such metrics.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed

METRICS = "/metrics"
PATIENCE_S = 10.0
SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>[-+.\deE]+)(?:\s+\d+)?\s*")
POSITION = re.compile(r'\bposition="(\d+)"')
DRAFTS = "vllm:spec_decode_num_drafts"
DRAFTED = "vllm:spec_decode_num_draft_tokens"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
DRAFT_S, SAVED_S = "firesteel_draft_seconds", "firesteel_draft_saved_seconds"
RATE, LENGTH = "sglang:spec_accept_rate", "sglang:spec_accept_length"
GAUGES = (RATE, LENGTH)
READ = ("vllm:spec_decode", DRAFT_S, SAVED_S, *GAUGES)  # beginnings of names
Samples = Mapping[str, float]  # by name, with the position appended


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftAcceptance:
    acceptance: float | None = None  # share of the drafted tokens
    length: float | None = None  # tokens per step of the model, its own included
    by_position: tuple[float, ...] = ()  # share of drafts that were accepted at least up to each position
    drafts: int | None = None
    drafted: int | None = None  # tokens
    accepted: int | None = None  # tokens
    draft_s: float | None = None  # seconds spent on drafting; only firesteel states them
    saved_s: float | None = None  # firesteel's estimate of seconds gained against none; negative: lost
    source: str = ""

    def in_words(self) -> str:
        accepted = ""
        if self.acceptance is not None:
            positions = f" ({self.positions_in_words()})" if self.by_position else ""
            count = "" if self.drafted is None else f"{self.drafted} "
            accepted = f"{100 * self.acceptance:.1f} % of {count}drafted tokens accepted{positions}"
        return ", ".join(filter(None, (accepted, self.length_in_words(), self.gain_in_words())))

    def positions_in_words(self) -> str:
        shares = ", ".join(f"{100 * share:.0f}" for share in self.by_position)
        return f"by position {shares} %" if shares else ""

    def length_in_words(self) -> str:
        return "" if self.length is None else f"{self.length:.2f} tokens per step"

    def gain_in_words(self) -> str:
        if self.saved_s is None:
            return ""
        drafting = "" if self.draft_s is None else f", {self.draft_s:.2f} s of drafting included"
        return f"estimate: {abs(self.saved_s):.2f} s {'lost' if self.saved_s < 0 else 'gained'}{drafting}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_metrics(api: Api) -> Samples | None:
    """Returns the samples that concern speculation, summed over engines; None if the server has no metrics."""
    try:
        text = api.get_text(METRICS, timeout_s=PATIENCE_S)
    except RequestFailed:
        return None
    return parse_metrics(text)


def parse_metrics(text: str) -> Samples:
    """Sums counters over their labels and averages gauges, which every rank states."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in text.splitlines():
        match = SAMPLE.fullmatch(line)
        if match is None or not match["name"].startswith(READ):
            continue
        name = match["name"].removesuffix("_total")
        position = POSITION.search(match["labels"] or "")
        found[f"{name} {position[1]}" if position else name].append(float(match["value"]))
    return {name: statistics.fmean(values) if name in GAUGES else sum(values) for name, values in found.items()}


def compute_speculation(before: Samples | None, after: Samples | None) -> DraftAcceptance | None:
    """Returns the acceptance between two readings; None if nothing was drafted, or if that is unknown."""
    if before is None or after is None:
        return None
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    if grown.get(DRAFTED) and grown.get(DRAFTS):
        drafts = grown[DRAFTS]
        positions = sorted(int(name.split()[1]) for name in grown if name.startswith(f"{BY_POSITION} "))
        accepted = grown.get(ACCEPTED, 0.0)
        return DraftAcceptance(
            acceptance=accepted / grown[DRAFTED],
            length=1 + accepted / drafts,
            by_position=tuple(grown[f"{BY_POSITION} {position}"] / drafts for position in positions),
            drafts=round(drafts),
            drafted=round(grown[DRAFTED]),
            accepted=round(accepted),
            draft_s=grown.get(DRAFT_S),
            saved_s=grown.get(SAVED_S),
            source=f"{'firesteel' if SAVED_S in after else 'vLLM'}'s counters during the benchmark",
        )
    if after.get(LENGTH) or after.get(RATE):
        return DraftAcceptance(
            acceptance=after.get(RATE) or None,
            length=after.get(LENGTH) or None,
            source="SGLang's gauges at the end of the benchmark, of its latest steps",
        )
    return None
