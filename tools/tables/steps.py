"""Tables of decoding steps, first tokens and mixed requests on an H200."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from firesteel.measure.record import Record
from tables.records import RECORDS, format_table, read

DECODE = RECORDS / "h200-decode"
LOOP = RECORDS / "h200-loop"
PREFILL = RECORDS / "h200-prefill"
LOOP_MANY = RECORDS / "h200-loop-many"
WORKLOAD = RECORDS / "h200-workload"
OLD_REQUESTS = """

These records are of requests that an earlier revision drew. `firesteel bench workload` now sends those that vLLM
was measured with: others of the same kind, with which firesteel has not been measured yet."""


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


def read_loop(folders: Iterable[Path] = (LOOP, LOOP_MANY)) -> list[Record]:
    records = [record for folder in folders for record in read(folder, "engine-decode-*.json")]
    return sorted(records, key=lambda record: record.parameters["batch"])


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


def name_workload(facts: Mapping[str, Any]) -> str:
    words = {
        "turns": "chat turn, {new} new tokens after {context} cached",
        "closed": "closed loop, {in_flight} in flight",
        "open": "{rate} requests per second",
    }
    return words[facts["kind"]].format(**facts)


def workload_table(records: list[Record]) -> str:
    """Returns a row per workload, and a note if records do not name their requests: those are other ones."""

    def row(record: Record) -> list[object]:
        parameters = record.parameters
        first, gap = parameters["first_token_ms"], parameters["gap_ms"]
        return [
            name_workload(parameters),
            f"{first['p50']:.1f}",
            f"{first['p99']:.1f}",
            f"{gap['p50']:.1f}",
            f"{gap['p99']:.1f}",
            f"{parameters['output_tok_s']:,.0f}",
            parameters["late_compilations"] + parameters["late_captures"],
        ]

    heads = ["requests", "first token ms", "p99", "gap ms", "p99", "output tok/s", "late compilations and captures"]
    is_old = any("request_digest" not in record.parameters for record in records)
    return format_table(heads, map(row, records)) + OLD_REQUESTS * is_old
