"""Tables of the engine and the HTTP server on a CPU."""

from __future__ import annotations

from pathlib import Path

from firesteel.measure.record import Record
from tables.records import RECORDS, format_table, read

FRONTEND = RECORDS / "cpu-frontend"
ENGINES = (RECORDS / "cpu-engine",)


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
