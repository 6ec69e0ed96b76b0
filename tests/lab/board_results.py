"""Results of runs on a board, as files."""

import json

from tests.lab import report_parts as parts

FAST_SLOTS = {"moe": "cutlass", "dense": "marlin", "attention": "flashinfer", "sinks": "on"}
DEPTHS = {0: 1.0, 4096: 0.9, 32768: 0.5}  # depth -> share of the speed without a context


def bench_of(speed, *, pp=2048, depths=DEPTHS, noise=0.002, device="NVIDIA GB10", runs=5):
    rows = []
    for depth, share in depths.items():
        values = [speed * share * (1 + noise * (number - runs // 2)) for number in range(runs)]
        row = parts.bench_row(values, pp=pp, depth=depth, share=0.5 * share)
        for name, cost in (("tpot_ms", 1e3), ("ttft_ms", 5e4)):
            row["series"][name]["values"] = [cost / value for value in values]
        rows.append(row)
    return parts.bench(rows, device=device)


def slots_of(values, state="seen"):
    rows = {slot: {"slot": slot, "state": state, "values": [value]} for slot, value in values.items()}
    return {"engine": "vllm", "path": "", "slots": rows}


def proven(bench, slots=FAST_SLOTS):
    """The levels of a run that counts."""
    path = parts.level("1.5", slots=slots_of(slots))
    return [parts.level("1"), path, parts.level("2"), parts.level("4", bench=bench)]


def content_of(speed=50.0, *, levels=None, engine="vllm", day=1, flags=(), environment=None, bench=None, **sizes):
    measured = bench or bench_of(speed, **sizes)
    device = measured["roof"]["device"]
    model = "openai/gpt-oss-120b"
    return {
        "time_utc": f"2026-11-{day:02}T10:00:00Z",
        "order": {"engine": engine, "model": model, "flags": list(flags)},
        "engine": {"name": engine, "kind": engine, "model": model},
        "levels": proven(measured) if levels is None else levels,
        "surroundings": {"device": device, "environment": environment or {}},
    }


def write_result(folder, name, *arguments, **fields):
    """write_result(tmp_path, "a", 50.0): the path of a run's result with this speed."""
    path = folder / name / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content_of(*arguments, **fields)))
    return path
