"""The summary of a report in Markdown: what ran, the speeds, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from firesteel.spark_report.machine_log import MachineSample
from firesteel.spark_report.parts import list_left_out
from firesteel.spark_report.report import PartReport, Report

COUNTED = {"doctor": "status", "verify": "status", "prove": "verdict", "bench": "bound"}  # field that is counted
SPEEDS = {
    "decode": "batch {batch} at {context} tokens: {tok_s:.1f} tok/s",
    "prefill": "{tokens} tokens: {tok_s:.0f} tok/s",
    "engine": "{concurrency} in flight: {output_tok_s:.1f} tok/s",
    "quality": "{precision}: perplexity {perplexity:.4f}, {right} right",
}
SERVED_SPEEDS = ("pp_tok_s", "tg_tok_s")  # of the lab's benchmark
SEND = "Attach this file to an issue of the firesteel project; read it first: nothing is sent by itself."


def summarise(report: Report) -> str:
    """Returns a summary, part by part."""
    device, quick = report.device, report.quick
    shown = device.name if device.is_cuda else "no GPU was found: only the CPU was measured, no kernel ran"
    lines = [f"# firesteel on {device.name}", "", SEND, "", f"- device: {shown}", f"- quick: {_yes_or_no(quick)}"]
    lines += [f"- parts: {len(report.parts)} of {len(report.planned)}"]
    lines += [f"- running when this was written: {report.running}"] if report.running else []
    for part in report.parts:
        machine = f"; {describe_machine(part.machine)}" if part.machine else ""
        lines.append(f"- {part.name}: {part.outcome}, {part.seconds:.0f} s; {describe_result(part)}{machine}")
    left_out = list_left_out(device, quick=quick, model=report.model)
    lines += [f"- {name}: left out: {why}" for name, why in left_out.items()]
    for part in report.parts:
        if part.has_failed:
            words = "\n".join(filter(None, (part.reason, part.last_words.strip())))
            lines += ["", f"## {part.name} (exit code {part.exit_code})", "", "```", words, "```"]
        elif part.not_measured and part.result["output"]:
            lines += ["", f"## {part.name} (not measured)", "", "```", part.result["output"], "```"]
    return "\n".join(lines) + "\n"


def describe_result(part: PartReport) -> str:
    """Returns the speeds of a part, or how often each verdict occurs in its rows."""
    if part.result is None:
        return "no result"
    if part.not_measured:
        return part.not_measured
    words = part.name.split("-")
    kind = words[1] if words[0] == "model" else words[0]
    if kind == "serve":
        return _describe_server(part.result)
    if kind == "llama":
        return ", ".join(_list_benchy_speeds(part.result["benchmarks"])) or "nothing"
    if kind in SPEEDS:
        rows = [_describe_row(kind, row) for row in part.result]
        if part.name == "model-prefill" and part.result:
            rows.insert(0, f"weights read in {part.result[0]['load_s']:.1f} s")
        return ", ".join(rows) or "nothing"
    verdicts = Counter(str(row.get(COUNTED[kind], "not measured")) for row in part.result)
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())) or "nothing"


def describe_machine(samples: Sequence[MachineSample]) -> str:
    """Returns the lowest free memory, the highest temperature and the range of the SM clock."""
    words = [f"least free memory {min(sample.available_gib for sample in samples):.1f} GiB"]
    temperatures = [sample.temperature_c for sample in samples if isinstance(sample.temperature_c, float)]
    clocks = [sample.sm_mhz for sample in samples if isinstance(sample.sm_mhz, float)]
    words += [f"hottest {max(temperatures):.0f} C"] if temperatures else []
    words += [f"SM clock {min(clocks):.0f} to {max(clocks):.0f} MHz"] if clocks else []
    return ", ".join(words)


def _describe_row(kind: str, row: dict[str, Any]) -> str:
    if "not_measured" in row:
        return f"batch {row['batch']} at {row['context']} tokens: not measured: {row['not_measured']}"
    return SPEEDS[kind].format(**row)


def _describe_server(result: dict[str, Any]) -> str:
    """Returns the speeds of the lab's benchmark, named as llama-benchy names them, or why there are none."""
    rows = [row for level in result["levels"] for row in level["figures"].get("bench", {}).get("rows", ())]
    shown = [
        "{}: prompts {:.0f} tok/s, answers {:.1f} tok/s".format(
            row["name"], *(row["series"][speed]["p50"] for speed in SERVED_SPEEDS)
        )
        for row in rows
        if row["series"].keys() >= set(SERVED_SPEEDS)
    ]
    reasons = [level["reason"] for level in result["levels"] if level["verdict"] in ("failed", "unproven")]
    return ", ".join([*shown, *reasons]) or "nothing"


def _list_benchy_speeds(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the mean speeds of llama-benchy's report in its notation: d is the depth, tokens of context before."""
    for row in rows:
        depth = f" @ d{row['context_size']}" if row["context_size"] else ""
        for name, speed in (
            (f"pp{row['prompt_size']}", "pp_throughput"),
            (f"tg{row['response_size']}", "tg_throughput"),
        ):
            mean = f"{row[speed]['mean']:.1f} tok/s" if row[speed] else "no figure"
            yield f"{name}{depth}: {mean}"


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"
