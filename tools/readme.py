"""Writes the tables of measured figures in the README, docs/vllm.md and docs/kernels.md from their records.

python tools/readme.py          # rewrites the text between the markers
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from firesteel.measure.record import Record

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
VLLM_PAGE = ROOT / "docs" / "vllm.md"
KERNELS_PAGE = ROOT / "docs" / "kernels.md"
OPS = ROOT / "records" / "h200-ops"
LIBRARIES = ROOT / "records" / "h200-libraries"
KV = ROOT / "records" / "kindling-kv"
AGREEMENT = ROOT / "records" / "h200-agreement"
QUALITY = ROOT / "records" / "kindling-quality"
DECODE = ROOT / "records" / "h200-decode"
LOOP = ROOT / "records" / "h200-loop"
PREFILL = ROOT / "records" / "h200-prefill"
WORKLOAD = ROOT / "records" / "h200-workload"
FRONTEND = ROOT / "records" / "cpu-frontend"
VLLM = ROOT / "records" / "h200-vllm"
ENGINES = (ROOT / "records" / "cpu-engine",)
SHOWN_M = (1, 8, 32, 64, 512, 2048, 8192)


def read(folder: Path, pattern: str) -> list[Record]:
    """Returns the records of a folder, sorted by file name."""
    return [Record.load(path) for path in sorted(folder.glob(pattern))]


def read_in_time(folder: Path, pattern: str) -> list[Record]:
    """Returns records in the order in which they were measured."""
    return sorted(read(folder, pattern), key=lambda record: record.surroundings.time_utc)


def format_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table in Markdown."""
    lines = [_join(heads), "|---" * len(heads) + "|", *map(_join, rows)]
    return "\n".join(lines)


def _join(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def read_ops(folder: Path = OPS) -> list[Record]:
    """Returns the records of ops without rounded activations, without ceilings."""
    records = read(folder, "*.json")
    return [
        record
        for record in records
        if record.name.startswith("op ") and record.parameters["activation"] in ("", "bf16")
    ]


def ops_table(records: list[Record]) -> str:
    """Returns a row per op and part, a column per M: time and share of ceiling of the fastest implementation."""
    best: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
    for record in records:
        row = best[record.parameters["op"], record.parameters["part"]]
        m = record.parameters["m"]
        if m not in row or record.median < row[m].median:
            row[m] = record
    rows = [
        [f"{op} {part}".rstrip(), *(_cell(row.get(m)) for m in SHOWN_M)] for (op, part), row in sorted(best.items())
    ]
    return format_table(["op", *(f"M = {m}" for m in SHOWN_M)], [row for row in rows if any(row[1:])])


def _cell(record: Record | None) -> str:
    if record is None:
        return ""
    share, bound = record.parameters["share"], record.parameters["bound"]
    return f"{record.median * 1e6:,.0f} us, {100 * share:.0f} % {bound}"


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
    """Returns the records of what each precision costs Kindling."""
    return read_in_time(folder, "quality--*.json")


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


def read_engines(folders: tuple[Path, ...] = ENGINES) -> list[Record]:
    """Returns the records by machine, then by requests in flight."""
    records = [read(folder, "engine--*.json") for folder in folders]
    return [
        record
        for of_model in records
        for record in sorted(of_model, key=lambda record: record.parameters["concurrency"])
    ]


def engine_table(records: list[Record]) -> str:
    def row(record: Record) -> list[object]:
        parameters, reread = record.parameters, record.parameters["reread"]
        return [
            parameters["model"],
            record.surroundings.device,
            f"{parameters['requests']} x ({parameters['prompt_tokens']} + {parameters['max_tokens']})",
            parameters["concurrency"],
            f"{record.median:,.0f}",
            f"{parameters['prefill_tok_s']:,.0f}",
            f"{parameters['decode_tok_s']:,.0f}",
            f"{100 * reread['likeliest_share']:.1f} %, others within {reread['largest_gap_nats']:.2f} nats",
        ]

    heads = [
        "model",
        "on",
        "requests",
        "in flight",
        "tok/s",
        "prefill tok/s",
        "decode tok/s",
        "most likely when rescored",
    ]
    return format_table(heads, map(row, records))


def read_decode(folder: Path = DECODE) -> list[Record]:
    """Returns the records by model, precision, batch and context."""

    def order(record: Record) -> tuple[str, str, bool, int, int]:
        parameters, packed = record.parameters, record.config["kernels"]["mxfp4_layers"]
        return parameters["model"], packed, has_fp8_kv(record), parameters["batch"], parameters["context"]

    return sorted(read(folder, "decode-*.json"), key=order)


def has_fp8_kv(record: Record) -> bool:
    is_fp8: bool = record.config["cache"]["kv_dtype"] == "fp8"
    return is_fp8


def decode_table(records: list[Record]) -> str:
    def row(record: Record) -> list[object]:
        parameters, packed = record.parameters, record.config["kernels"]["mxfp4_layers"]
        return [
            parameters["model"].partition(",")[0],
            ("all MXFP4" if packed else "as shipped") + ", FP8 KV" * has_fp8_kv(record),
            parameters["batch"],
            parameters["context"],
            f"{parameters['ms_a_token']:.3f}",
            f"{parameters['tok_s']:.0f}",
            f"{parameters['bytes_a_token'] / 1e9:.2f}",
            f"{100 * parameters['share_of_floor']:.0f} %",
        ]

    heads = [
        "model",
        "precision",
        "batch",
        "context",
        "ms per token",
        "tok/s",
        "GB per token",
        "share of the floor",
    ]
    return format_table(heads, map(row, records))


def read_loop(folder: Path = LOOP) -> list[Record]:
    return sorted(read(folder, "engine-decode-*.json"), key=lambda record: record.parameters["batch"])


def loop_table(records: list[Record]) -> str:
    """Returns the rows of decoding; figures that a record lacks are blank, and have no column if all lack them."""

    def row(record: Record) -> dict[str, object]:
        parameters = record.parameters
        shown: dict[str, object] = {
            "in flight": parameters["batch"],
            "context": parameters["context"],
            "tokens": f"drawn at {parameters['temperature']:g}" if parameters["temperature"] else "most likely",
            "tok/s": f"{parameters['tok_s']:,.0f}",
            "of bare replay": f"{100 * parameters['share_of_bare_replay']:.1f} %",
            "GPU idle": f"{100 * parameters['idle_share']:.1f} %",
            "experts per layer": f"{parameters['experts']['distinct_a_layer_and_step']:.0f}",
        }
        if "share_of_floor" in parameters:
            shown["GB per token"] = f"{parameters['bytes_a_token'] / 1e9:.2f}"
            shown["share of the floor"] = f"{100 * parameters['share_of_floor']:.0f} %"
            shown["scheduling us"] = f"{1e3 * parameters['stages_ms_a_step']['schedule']:.0f}"
        return shown

    rows = [row(record) for record in records]
    heads = list(dict.fromkeys(head for row in rows for head in row))
    return format_table(heads, [[row.get(head, "") for head in heads] for row in rows])


def read_prefill(folder: Path = PREFILL) -> list[Record]:
    return sorted(read(folder, "engine-prefill-*.json"), key=lambda record: record.parameters["tokens"])


def prefill_table(records: list[Record]) -> str:
    def row(record: Record) -> list[object]:
        parameters = record.parameters
        return [parameters["tokens"], f"{parameters['ms']:.1f}", f"{parameters['tok_s']:,.0f}"]

    return format_table(["prompt tokens", "ms to the first token", "tok/s"], map(row, records))


def read_workload(folder: Path = WORKLOAD) -> list[Record]:
    order = ("turns", "closed", "open")

    def place(record: Record) -> tuple[float, ...]:
        parameters = record.parameters
        numbers = (parameters.get(name, 0) for name in ("context", "new", "in_flight", "rate"))
        return (order.index(parameters["kind"]), *numbers)

    return sorted(read(folder, "workload-*.json"), key=place)


def workload_table(records: list[Record]) -> str:
    words = {
        "turns": "chat turn, {new} new tokens after {context} cached",
        "closed": "closed loop, {in_flight} in flight",
        "open": "{rate} requests per second",
    }

    def row(record: Record) -> list[object]:
        parameters = record.parameters
        first, gap = parameters["first_token_ms"], parameters["gap_ms"]
        return [
            words[parameters["kind"]].format(**parameters),
            f"{first['p50']:.1f}",
            f"{first['p99']:.1f}",
            f"{gap['p50']:.1f}",
            f"{gap['p99']:.1f}",
            f"{parameters['output_tok_s']:,.0f}",
            parameters["late_compilations"] + parameters["late_captures"],
        ]

    heads = ["requests", "first token ms", "p99", "gap ms", "p99", "output tok/s", "late compilations and captures"]
    return format_table(heads, map(row, records))


def read_frontend(folder: Path = FRONTEND) -> list[Record]:
    return read(folder, "frontend--*.json")


def frontend_table(records: list[Record]) -> str:
    def row(record: Record) -> list[object]:
        parameters = record.parameters
        return [
            parameters["concurrency"],
            f"{parameters['rate_tok_s']:,.0f}",
            f"{record.median:,.0f}",
            f"{parameters['core_share']:.2f}",
            f"{parameters['us_a_token']:.0f}",
            f"{parameters['chunks_a_token']:.2f}",
        ]

    heads = [
        "streams",
        "tok/s from the engine",
        "tok/s at the clients",
        "cores",
        "us per token",
        "chunks per token",
    ]
    return format_table(heads, map(row, records))


def read_vllm(folder: Path = VLLM) -> list[Record]:
    """Returns the records of vLLM with and without the plugin, decoding first."""

    def order(record: Record) -> tuple[str, int]:
        return record.parameters["kind"], record.parameters.get("batch") or record.parameters["tokens"]

    return sorted(read(folder, "vllm*.json"), key=order)


def vllm_table(records: list[Record]) -> str:
    """Returns a row per measurement and a column per engine and model runner, stock vLLM first."""
    rows: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        facts = record.parameters
        what = f"decode, {facts['batch']} at a time, tok/s" if "batch" in facts else f"{facts['tokens']} tokens, ms"
        engine = "stock vLLM" if facts["engine"] == "vllm" else "with firesteel"
        rows[what][f"{engine}, runner {facts['runner']}"] = record
    engines = sorted({engine for row in rows.values() for engine in row})
    started = ["start, s", *(f"{_started(rows, engine):.0f}" for engine in engines)]
    cells = [[what, *(_speed(row.get(engine)) for engine in engines)] for what, row in rows.items()]
    return format_table(["", *engines], [*cells, started])


def _speed(record: Record | None) -> str:
    if record is None:
        return ""
    batch = record.parameters.get("batch")
    return f"{record.median:.1f}" if batch is None else f"{1e3 * batch / record.median:,.0f}"


def _started(rows: dict[str, dict[str, Record]], engine: str) -> float:
    return max(row[engine].startup_s or 0.0 for row in rows.values() if engine in row)


def read_libraries(folder: Path = LIBRARIES) -> list[Record]:
    """Returns the records of kernel libraries and of ours beside them, by number of tokens."""
    return sorted(read(folder, "op-*.json"), key=lambda record: record.parameters["m"])


def library_table(records: list[Record]) -> str:
    """Returns a row per M: our fastest implementation, the library from each start, and our share of its time."""
    ours: dict[int, Record] = {}
    theirs: dict[int, dict[str, Record]] = defaultdict(dict)
    for record in records:
        m = record.parameters["m"]
        if not record.kernels:
            theirs[m][record.parameters["start"]] = record
        elif m not in ours or record.median < ours[m].median:
            ours[m] = record

    def row(m: int) -> list[object]:
        times = [theirs[m][start].median for start in ("ids", "logits", "sorted pairs")]
        shares = [f"{ours[m].median / time:.2f}" for time in times[:2]]
        shown = [f"{time * 1e6:,.1f}" for time in (ours[m].median, *times)]
        return [m, f"`{ours[m].parameters['implementation']}`", *shown, *shares]

    heads = [
        "tokens",
        "ours",
        "us",
        "triton_kernels from ids, us",
        "from logits, us",
        "matmuls only, us",
        "ours / from ids",
        "ours / from logits",
    ]
    return format_table(heads, map(row, ours))


def tables() -> dict[str, str]:
    """Returns the README's tables by the names of their markers."""
    return {
        "ops": ops_table(read_ops()),
        "kv": kv_table(read_kv()),
        "quality": quality_table(read_quality()),
        "agreement": agreement_table(read_agreement()),
        "engine": engine_table(read_engines()),
        "decode": decode_table(read_decode()),
        "loop": loop_table(read_loop()),
        "prefill": prefill_table(read_prefill()),
        "workload": workload_table(read_workload()),
        "frontend": frontend_table(read_frontend()),
    }


def pages() -> dict[Path, dict[str, str]]:
    """Returns the tables of each page."""
    return {
        README: tables(),
        VLLM_PAGE: {"vllm": vllm_table(read_vllm())},
        KERNELS_PAGE: {"libraries": library_table(read_libraries())},
    }


def write(page: Path, tables: dict[str, str]) -> str:
    """Returns the text of a page with its tables renewed."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        markers = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        text, count = markers.subn(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)
        if count != 1:
            raise SystemExit(f"{page} must have the markers of the table {name} once, not {count} times")
    return text


def write_all() -> None:
    """Renews the tables of all pages."""
    for page, page_tables in pages().items():
        page.write_text(write(page, page_tables), encoding="utf-8")


if __name__ == "__main__":
    write_all()
