"""The comparison with other engines on one H200: our records beside the raw figures in records/peers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from firesteel.measure.record import Record
from tables.records import RECORDS, format_table, read
from tables.steps import DECODE, LOOP, LOOP_MANY, PREFILL, read_loop
from tables.vllm import VLLM

PEERS = RECORDS / "peers"
MODEL = "gpt-oss-120b"
OURS, PLUGIN = "firesteel", "vLLM 0.26.0 + firesteel"
STOCK, SGLANG, LLAMACPP = "vLLM 0.26.0", "SGLang 0.5.17", "llama.cpp (a)"
ENGINES = (OURS, PLUGIN, STOCK, SGLANG, LLAMACPP)
DECODED = (1, 8, 32, 64, 128, 256)  # requests in flight
PROMPTS = (20, 100, 500, 2048, 8192, 20000)  # tokens
QUICK_LEAVES_OUT = ("64 requests", "128 requests", "256 requests", "of 20 ", "of 500 ")
CONTEXT = 2048  # of one request that decodes


@dataclass(frozen=True, slots=True)
class Speed:
    """One figure of one engine: tokens per second while `requests` decode, or the ms to the first token."""

    engine: str
    value: float
    requests: int = 0
    tokens: int = 0

    @property
    def place(self) -> tuple[str, int]:
        return ("requests", self.requests) if self.requests else ("tokens", self.tokens)


def read_speeds() -> dict[tuple[str, int], dict[str, float]]:
    """Returns the figures by requests or tokens, then by engine; of several days, an engine's best one."""
    best: dict[tuple[str, int], dict[str, float]] = {}
    for speed in [*_read_ours(), *_read_vllm(VLLM), *_read_peers()]:
        row = best.setdefault(speed.place, {})
        choose = max if speed.requests else min
        row[speed.engine] = choose(speed.value, row.get(speed.engine, speed.value))
    return best


def _read_ours() -> Iterator[Speed]:
    for record in read(DECODE, "decode-batch-1-*.json"):
        if _is_as_shipped(record) and record.parameters["context"] == CONTEXT:
            yield Speed(OURS, record.parameters["tok_s"], requests=1)
    for record in read_loop():
        if record.parameters["batch"] > 1:
            yield Speed(OURS, record.parameters["tok_s"], requests=record.parameters["batch"])
    for record in read(PREFILL, "engine-prefill-*.json"):
        yield Speed(OURS, record.parameters["ms"], tokens=record.parameters["tokens"])


def _is_as_shipped(record: Record) -> bool:
    is_plain = not record.config["kernels"]["mxfp4_layers"] and record.config["cache"]["kv_dtype"] != "fp8"
    return is_plain and record.parameters["model"].startswith(MODEL)


def _read_vllm(folder: Path) -> Iterator[Speed]:
    """Reads records of `tools/vllm_bench.py`, with and without the plugin."""
    for record in read(folder, "vllm*.json"):
        facts = record.parameters
        engine = STOCK if facts["engine"] == "vllm" else PLUGIN
        if "batch" in facts:
            yield Speed(engine, 1e3 * facts["batch"] / record.median, requests=facts["batch"])
        else:
            yield Speed(engine, record.median, tokens=facts["tokens"])


def _read_peers() -> Iterator[Speed]:
    for engine, pattern in ((STOCK, "vllm-0.26.0--*.jsonl"), (SGLANG, "sglang-0.5.17--*.jsonl")):
        for path in sorted(PEERS.glob(pattern)):
            for line in path.read_text(encoding="utf-8").splitlines():
                yield from _read_line(engine, json.loads(line))
    yield from _read_vllm(PEERS)
    for row in json.loads((PEERS / "llama-bench-120b--2026-11-15.json").read_text(encoding="utf-8")):
        if row["n_gen"] and row["n_depth"] == CONTEXT:
            yield Speed(LLAMACPP, row["avg_ts"], requests=1)
        elif row["n_prompt"] and not row["n_depth"]:
            yield Speed(LLAMACPP, 1e3 * row["n_prompt"] / row["avg_ts"], tokens=row["n_prompt"])


def _read_line(engine: str, line: dict[str, Any]) -> Iterator[Speed]:
    if line["kind"] == "batch_decode" or (line["kind"] == "decode" and line["prompt"] == CONTEXT):
        yield Speed(engine, line["decode_tok_s"], requests=line["batch"])
    elif line["kind"] == "prefill":
        yield Speed(engine, 1e3 * median(line["runs"]), tokens=line["prompt"])


def peers_table() -> str:
    """Returns a row per measurement and a column per engine; the best of several figures in a row is bold."""
    speeds = read_speeds()
    rows = [
        [_name_decode(requests), *_cells(speeds.get(("requests", requests), {}), "{:,.0f}", max)]
        for requests in DECODED
    ]
    rows += [
        [f"first token of {tokens:,} tokens, ms", *_cells(speeds.get(("tokens", tokens), {}), "{:,.1f}", min)]
        for tokens in PROMPTS
    ]
    return format_table(["one H200, gpt-oss-120b", *ENGINES], rows)


def _name_decode(requests: int) -> str:
    return "decode, 1 request, tok/s" if requests == 1 else f"decode, {requests} requests, tok/s"


def _cells(row: dict[str, float], shape: str, choose: Any) -> list[str]:
    best = {choose(row.values())} if len(row) > 1 else set()
    texts = {
        engine: f"**{shape}**".format(value) if value in best else shape.format(value)
        for engine, value in row.items()
    }
    return [texts.get(engine, "") for engine in ENGINES]


def quick_table() -> str:
    """Returns the README's table: one, eight and thirty-two requests, and the first token of four prompts."""
    return "\n".join(
        line for line in peers_table().splitlines() if not any(word in line for word in QUICK_LEAVES_OUT)
    )


def starts_table() -> str:
    """Returns the start-up times that the peers' records state."""
    rows = []
    for engine, pattern in ((STOCK, "vllm-0.26.0--*.jsonl"), (SGLANG, "sglang-0.5.17--*.jsonl")):
        for path in sorted(PEERS.glob(pattern)):
            start = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
            rows.append([engine, path.name.partition("--")[2].removesuffix(".jsonl"), f"{start['startup_s']:.0f}"])
    return format_table(["engine", "day", "start-up, s"], rows)


def find_folders() -> list[Path]:
    """Returns the folders of records behind the comparison."""
    return [DECODE, LOOP, LOOP_MANY, PREFILL, VLLM, PEERS]
