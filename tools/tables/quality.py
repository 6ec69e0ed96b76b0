"""Tables of what precision and batching cost: perplexity, answers, equal tokens."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from firesteel.measure.record import Record
from firesteel.quality import PRECISIONS
from tables.records import RECORDS, format_table, read_in_time

KV = RECORDS / "kindling-kv"
AGREEMENT = RECORDS / "h200-agreement"
INVARIANCE = RECORDS / "h200-invariance"
INVARIANCE_COST = RECORDS / "h200-invariance-cost"
QUALITY = RECORDS / "kindling-quality"


def read_kv(folder: Path = KV) -> list[Record]:
    """Returns Kindling's perplexity for each format of keys and values, the most precise first."""
    return read_in_time(folder, "kindling-perplexity--*.json")


def kv_table(records: list[Record]) -> str:
    """Returns a row per format of keys and values, with the change against the first."""

    def row(record: Record) -> list[object]:
        change = 100 * (record.median / records[0].median - 1)
        shown = "" if record is records[0] else f"{change:+.4f} %"
        clipped = record.parameters["clipped"] if record.config["cache"]["kv_dtype"] == "fp8" else ""
        return [record.parameters["stored"], f"{record.median:.5f}", shown, clipped]

    return format_table(["keys and values in", "perplexity", "change", "values clipped"], map(row, records))


def read_quality(folder: Path = QUALITY) -> list[Record]:
    """Returns the records of what each precision costs Kindling, in the order of `bench quality`."""
    order = list(PRECISIONS)
    records = read_in_time(folder, "quality--*.json")
    return sorted(records, key=lambda record: order.index(record.parameters["precision"]))


def quality_table(records: list[Record]) -> str:
    """Returns a row per precision, with the changes against the first."""

    def row(record: Record) -> list[object]:
        parameters = record.parameters
        right = f"{100 * parameters['exact_match']:.2f} % of {parameters['items']}"
        change = f"{100 * parameters['perplexity_change']:+.2f} %"
        changes = [change, right, parameters["changed"], parameters["lost"], parameters["gained"]]
        shown = ["", right, "", "", ""] if record is records[0] else changes
        return [parameters["precision"], f"{record.median:.4f}", *shown]

    heads = ["precision", "perplexity", "change", "exact match", "answers changed", "lost", "gained"]
    return format_table(heads, map(row, records))


def read_agreement(folder: Path = AGREEMENT) -> list[Record]:
    return read_in_time(folder, "*.json")


def read_invariance(folder: Path = INVARIANCE) -> list[Record]:
    """Returns the records of equalities of a batch-invariant engine."""
    return read_in_time(folder, "*.json")


def agreement_table(records: list[Record]) -> str:
    """Returns a row per equality, two columns per model."""
    models = list(dict.fromkeys(record.parameters["model"] for record in records))
    by_equality: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        by_equality[record.parameters["equality"]][record.parameters["model"]] = record

    def cells(record: Record) -> list[str]:
        share, differences = record.parameters["token_share"], record.parameters["differences_a_token"]
        return [f"{100 * share:.1f} %", f"{1000 * differences:.1f}"]

    heads = [head for model in models for head in (f"{model}: tokens equal", "differences per 1000 tokens")]
    rows = [[name, *(cell for model in models for cell in cells(row[model]))] for name, row in by_equality.items()]
    return format_table(["equality", *heads], rows)


def bits_table(records: list[Record]) -> str:
    """Returns a row per equality of a batch-invariant engine: rows of logits that were compared, and their bits."""
    rows = [
        [facts["equality"], facts["evidence"], facts["logit_rows"], facts["logit_bits_differing"]]
        for facts in (record.parameters for record in records)
    ]
    return format_table(["equality", "run", "rows of logits", "bits that differ"], rows)


def read_invariance_cost(folder: Path = INVARIANCE_COST) -> list[Record]:
    """Returns the records of decoding and of prompts, with and without batch invariance."""
    return read_in_time(folder, "*.json")


def cost_table(records: list[Record]) -> str:
    """Returns a row per measurement: milliseconds without and with batch invariance, and by how much more."""
    pairs: dict[tuple[str, int], dict[bool, float]] = defaultdict(dict)
    for record in records:
        facts, is_invariant = record.parameters, bool(record.config["kernels"].get("batch_invariant"))
        if "batch" in facts:
            pairs["decoding step, requests", facts["batch"]][is_invariant] = facts["ms_a_step"]
        else:
            pairs["first token, prompt tokens", facts["tokens"]][is_invariant] = facts["ms"]
    rows = [
        [f"{what}: {count}", f"{ms[False]:.2f}", f"{ms[True]:.2f}", f"{100 * (ms[True] / ms[False] - 1):+.0f} %"]
        for (what, count), ms in sorted(pairs.items())
    ]
    return format_table(["", "without, ms", "with, ms", "cost"], rows or [["not measured yet", "", "", ""]])
