"""Writes the README's tables of measured figures from the records they come from.

python tools/readme.py          # rewrites what stands between the markers
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from firesteel.measure.record import Record

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
OPS = ROOT / "records" / "h200-ops"
KV = ROOT / "records" / "kindling-kv"
AGREEMENT = ROOT / "records" / "h200-agreement"
QUALITY = ROOT / "records" / "kindling-quality"
DECODE = ROOT / "records" / "h200-decode"
DECODE_EARLIER = ROOT / "records" / "h200-decode-earlier"
LOOP = ROOT / "records" / "h200-loop"
PREFILL = ROOT / "records" / "h200-prefill"
FRONTEND = ROOT / "records" / "cpu-frontend"
ENGINES = (ROOT / "records" / "cpu-engine", ROOT / "records" / "h200-engine")
SHOWN_M = (1, 8, 32, 64, 512, 2048, 8192)


def read_ops(folder: Path = OPS) -> list[Record]:
    """Of ops without activations to round, or with bf16 ones; ceilings left out."""
    records = [Record.load(path) for path in sorted(folder.glob("*.json"))]
    return [one for one in records if one.name.startswith("op ") and one.parameters["activation"] in ("", "bf16")]


def ops_table(records: list[Record]) -> str:
    """A row for each op and part, a column for each M: time and share of the ceiling, of the fastest way."""
    best: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
    for record in records:
        row = best[record.parameters["op"], record.parameters["part"]]
        m = record.parameters["m"]
        if m not in row or record.median < row[m].median:
            row[m] = record
    lines = ["| op | " + " | ".join(f"M = {m}" for m in SHOWN_M) + " |", "|---" * (len(SHOWN_M) + 1) + "|"]
    for (op, part), row in sorted(best.items()):
        cells = [_cell(row.get(m)) for m in SHOWN_M]
        if any(cells):
            lines.append(f"| {op} {part}".rstrip() + " | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(record: Record | None) -> str:
    if record is None:
        return ""
    share, bound = record.parameters["share"], record.parameters["bound"]
    return f"{record.median * 1e6:,.0f} us, {100 * share:.0f} % {bound}"


def read_kv(folder: Path = KV) -> list[Record]:
    """Kindling's perplexity for each way to store keys and values; the most precise first."""
    records = [Record.load(path) for path in folder.glob("kindling-perplexity--*.json")]
    return sorted(records, key=lambda record: record.surroundings.time_utc)


def kv_table(records: list[Record]) -> str:
    """A row for each way to store keys and values, with the change against the first."""
    lines = ["| keys and values in | perplexity | change | values clipped |", "|---|---|---|---|"]
    for record in records:
        change = 100 * (record.median / records[0].median - 1)
        shown = "" if record is records[0] else f"{change:+.4f} %"
        stored = record.parameters["stored"]
        clipped = record.parameters["clipped"] if record.config["cache"]["kv_dtype"] == "fp8" else ""
        lines.append(f"| {stored} | {record.median:.5f} | {shown} | {clipped} |")
    return "\n".join(lines)


def read_quality(folder: Path = QUALITY) -> list[Record]:
    """What each precision costs Kindling, in the order in which it was measured."""
    records = [Record.load(path) for path in folder.glob("quality--*.json")]
    return sorted(records, key=lambda record: record.surroundings.time_utc)


def quality_table(records: list[Record]) -> str:
    """A row for each precision, with the changes against the first."""
    lines = [
        "| precision | perplexity | change | exact match | answers changed | lost | gained |",
        "|---" * 7 + "|",
    ]
    for record in records:
        found = record.parameters
        right = f"{100 * found['exact_match']:.2f} % of {found['items']}"
        changes = [
            f"{100 * found['perplexity_change']:+.2f} %",
            right,
            found["changed"],
            found["lost"],
            found["gained"],
        ]
        shown = ["", right, "", "", ""] if record is records[0] else changes
        lines.append(f"| {found['precision']} | {record.median:.4f} | " + " | ".join(map(str, shown)) + " |")
    return "\n".join(lines)


def read_agreement(folder: Path = AGREEMENT) -> list[Record]:
    """In the order in which the equalities were measured."""
    records = [Record.load(path) for path in folder.glob("*.json")]
    return sorted(records, key=lambda record: record.surroundings.time_utc)


def agreement_table(records: list[Record]) -> str:
    """A row for each equality, two columns for each model."""
    models = list(dict.fromkeys(record.parameters["model"] for record in records))
    rows: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        rows[record.parameters["equality"]][record.parameters["model"]] = record
    heads = [f"{model}: tokens equal | differences a 1000 tokens" for model in models]
    lines = ["| equality | " + " | ".join(heads) + " |", "|---" * (2 * len(models) + 1) + "|"]
    for equality, row in rows.items():
        cells = [
            f"{100 * found['token_share']:.1f} % | {1000 * found['differences_a_token']:.1f}"
            for found in (row[model].parameters for model in models)
        ]
        lines.append(f"| {equality} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def read_engines(folders: tuple[Path, ...] = ENGINES) -> list[Record]:
    """By machine, then by requests in flight."""
    records = [[Record.load(path) for path in folder.glob("engine--*.json")] for folder in folders]
    return [one for found in records for one in sorted(found, key=lambda one: one.parameters["concurrency"])]


def engine_table(records: list[Record]) -> str:
    lines = [
        "| model | on | requests | in flight | tok/s | prefill tok/s | decode tok/s | likeliest read again |",
        "|---" * 8 + "|",
    ]
    for record in records:
        found = record.parameters
        reread, size = found["reread"], f"{found['requests']} x ({found['prompt_tokens']} + {found['max_tokens']})"
        lines.append(
            f"| {found['model']} | {record.surroundings.device} | {size} | {found['concurrency']} "
            f"| {record.median:,.0f} | {found['prefill_tok_s']:,.0f} | {found['decode_tok_s']:,.0f} "
            f"| {100 * reread['likeliest_share']:.1f} %, others within {reread['largest_gap_nats']:.2f} nats |"
        )
    return "\n".join(lines)


def read_decode(folder: Path = DECODE) -> list[Record]:
    """By model, precision, batch and context."""

    def order(record: Record) -> tuple[str, str, int, int]:
        found = record.parameters
        return found["model"], record.config["kernels"]["mxfp4_layers"], found["batch"], found["context"]

    return sorted((Record.load(path) for path in folder.glob("decode-*.json")), key=order)


def decode_table(records: list[Record]) -> str:
    lines = [
        "| model | precision | batch | context | ms a token | tok/s | GB a token | share of the floor |",
        "|---" * 8 + "|",
    ]
    for record in records:
        found, packed = record.parameters, record.config["kernels"]["mxfp4_layers"]
        lines.append(
            f"| {found['model'].partition(',')[0]} | {'all MXFP4' if packed else 'as shipped'} "
            f"| {found['batch']} | {found['context']} "
            f"| {found['ms_a_token']:.3f} | {found['tok_s']:.0f} | {found['bytes_a_token'] / 1e9:.2f} "
            f"| {100 * found['share_of_floor']:.0f} % |"
        )
    return "\n".join(lines)


def read_loop(folder: Path = LOOP) -> list[Record]:
    records = [Record.load(path) for path in folder.glob("engine-decode-*.json")]
    return sorted(records, key=lambda one: one.parameters["batch"])


def loop_table(records: list[Record]) -> str:
    lines = [
        "| in flight | context | tok/s | of bare replay | GPU idle | experts met a layer |",
        "|---" * 6 + "|",
    ]
    for record in records:
        found = record.parameters
        lines.append(
            f"| {found['batch']} | {found['context']} | {found['tok_s']:,.0f} "
            f"| {100 * found['share_of_bare_replay']:.0f} % | {100 * found['idle_share']:.1f} % "
            f"| {found['experts']['distinct_a_layer_and_step']:.0f} |"
        )
    return "\n".join(lines)


def read_prefill(folder: Path = PREFILL) -> list[Record]:
    records = [Record.load(path) for path in folder.glob("engine-prefill-*.json")]
    return sorted(records, key=lambda one: one.parameters["tokens"])


def prefill_table(records: list[Record]) -> str:
    lines = ["| prompt tokens | ms to the first token | tok/s |", "|---" * 3 + "|"]
    for record in records:
        found = record.parameters
        lines.append(f"| {found['tokens']} | {found['ms']:.0f} | {found['tok_s']:,.0f} |")
    return "\n".join(lines)


def read_frontend(folder: Path = FRONTEND) -> list[Record]:
    return [Record.load(path) for path in sorted(folder.glob("frontend--*.json"))]


def frontend_table(records: list[Record]) -> str:
    lines = [
        "| streams | tok/s from the engine | tok/s at the clients | cores | us a token | chunks a token |",
        "|---" * 6 + "|",
    ]
    for record in records:
        found = record.parameters
        lines.append(
            f"| {found['concurrency']} | {found['rate_tok_s']:,.0f} | {record.median:,.0f} "
            f"| {found['core_share']:.2f} | {found['us_a_token']:.0f} | {found['chunks_a_token']:.2f} |"
        )
    return "\n".join(lines)


def tables() -> dict[str, str]:
    """By the name of their markers."""
    return {
        "ops": ops_table(read_ops()),
        "kv": kv_table(read_kv()),
        "quality": quality_table(read_quality()),
        "agreement": agreement_table(read_agreement()),
        "engine": engine_table(read_engines()),
        "decode": decode_table(read_decode()),
        "decode-earlier": decode_table(read_decode(DECODE_EARLIER)),
        "loop": loop_table(read_loop()),
        "prefill": prefill_table(read_prefill()),
        "frontend": frontend_table(read_frontend()),
    }


def write(text: str) -> str:
    """The README with its tables made anew."""
    for name, table in tables().items():
        markers = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        text, count = markers.subn(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)
        if count != 1:
            raise SystemExit(f"{README} must hold the markers of the table {name} once, not {count} times")
    return text


if __name__ == "__main__":
    README.write_text(write(README.read_text(encoding="utf-8")), encoding="utf-8")
