"""Results for tests of reports and comparisons, as JSON and parsed."""

import itertools

from firesteel.lab.bench.result import BenchResult
from firesteel.lab.codec import from_json
from firesteel.lab.level_result import parse_level
from firesteel.lab.result import parse_result

SERIES = {
    "tg_tok_s": ("tok/s", "higher"),
    "pp_tok_s": ("tok/s", "higher"),
    "ttft_ms": ("ms", "lower"),
    "itl_ms": ("ms", "lower"),
    "tpot_ms": ("ms", "lower"),
    "e2e_ms": ("ms", "lower"),
}


def series(figure, values):
    unit, better = SERIES[figure]
    return {"unit": unit, "better": better, "values": list(values)}


def bench_row(tg_values=(400.0, 410.0, 420.0), *, pp=512, depth=0, concurrency=1, share=0.45):
    figures = {
        "tg_tok_s": tg_values,
        "pp_tok_s": [50 * value for value in tg_values],
        "ttft_ms": (20.0, 21.0, 30.0),
        "itl_ms": (2.0, 2.1, 2.2, 9.0),
        "tpot_ms": (2.3, 2.4, 2.5),
        "e2e_ms": (90.0, 95.0, 99.0),
    }
    tg_share = {
        "bytes_a_token": 5e9,
        "flops_a_token": 1e10,
        "device": "NVIDIA H200",
        "of": "measured read",
        "ceiling_tok_s": None if share is None else 410 / share,
        "share": share,
    }
    return {
        "phase": "prompt",
        "failures": [],
        "batches": [],
        "shares": {"tg_tok_s": tg_share},
        "workload": {"pp": pp, "tg": 32, "depth": depth, "concurrency": concurrency},
        "series": {name: series(name, values) for name, values in figures.items()},
    }


def bench(rows=None, *, peak=2 << 30, device="NVIDIA H200"):
    """A result as an earlier version wrote it, with fewer fields than today."""
    gb_s = 4645.0 if "H200" in device else None
    memory = [[0.0, peak // 2, None], [1.0, peak, None], [2.0, peak, None]]
    usage = {
        "cores": 1.5,
        "cpu_s": 3.0,
        "wall_s": 2.0,
        "peak_memory_bytes": peak,
        "peak_gpu_bytes": None,
        "memory": memory,
    }
    default = [bench_row(), bench_row(depth=4096), bench_row(pp=2048), bench_row(concurrency=4)]
    return {
        "schema": 1,
        "url": "http://127.0.0.1:1/v1",
        "model": "gpt-oss-120b",
        "plan": {"runs": 3, "warmups": 1},
        "roof": {"device": device, "gb_s": gb_s, "of": "measured read" if gb_s else "", "tflop_s": None},
        "latency_s": 0.001,
        "left_out": [],
        "startup_s": 21.5,
        "seconds": 9.0,
        "usage": usage,
        "rows": default if rows is None else rows,
    }


def parse_bench(content):
    return from_json(BenchResult, content, "the benchmark")


def level(name, verdict="passed", *, valid=True, reason="", **figures):
    return {
        "level": name,
        "verdict": verdict,
        "valid": valid,
        "reason": reason or f"reason of {name}",
        "seconds": 1.0,
        "figures": figures,
    }


def parsed_levels(*contents):
    return tuple(map(parse_level, contents))


def matrix():
    gates = {"kv_dtype": ["auto", "fp8"], "sinks": ["on", "off"]}
    cells = [
        {
            "gates": dict(zip(gates, chosen, strict=True)),
            "status": "done",
            "reason": "",
            "figures": {"tg_tok_s": 100.0 + 10 * number},
        }
        for number, chosen in enumerate(itertools.product(*gates.values()))
    ]
    cells[2] = {**cells[2], "status": "crashed", "figures": {}, "reason": "killed by SIGSEGV"}
    return {"gates": gates, "figures": {"tg_tok_s": "tok/s"}, "cells": cells, "words": "3 of 4 cells done"}


def profile():
    categories = [{"category": "experts", "ms": 0.7}, {"category": "gaps", "ms": 0.2}]
    layers = [{"layer": name, "ms": 0.3, "experts": 0.3} for name in ("0", "1", "outside layers")]
    return {
        "source": "trace.json",
        "steps": 2,
        "step_ms": 0.9,
        "categories": categories,
        "kernels": [],
        "layers": layers,
    }


def content(**changes):
    """A result.json with every section; its fields are those of an earlier version."""
    change = {
        "name": "pp512 tg32",
        "figure": "tg_tok_s",
        "unit": "tok/s",
        "before": 400.0,
        "after": 402.0,
        "change": 0.005,
        "low": -0.01,
        "high": 0.02,
        "verdict": "same",
    }
    calls = {
        "op": "moe_matmul",
        "implementation": "triton",
        "activation": "mxfp8",
        "calls": 10,
        "seconds": 0.01,
        "launches": {"kernel_a": 10},
        "artefacts": [{"kernel": "kernel_a", "tile": "", "artefact": "1", "launches": 10, "verdict": "native-fp4"}],
    }
    surroundings = {
        "device": "NVIDIA H200",
        "versions": {"torch": "2.11"},
        "command": ["firesteel", "lab"],
        "commit": "abc",
        "is_dirty": False,
        "environment": {},
    }
    return {
        "engine": {"name": "firesteel", "model": "gpt-oss-120b"},
        "reductions": ["40 requests instead of 200"],
        "levels": [level("1"), level("1.5"), level("4", found=3), level("5", "unproven", reason="no baseline")],
        "surroundings": surroundings,
        "kernels": [calls],
        "bench": bench(),
        "matrix": matrix(),
        "memory": {"seconds": [0.0, 9.0], "host_bytes": [1 << 30, 2 << 30], "gpu_bytes": [None, None]},
        "comparison": {"words": "ignored", "regressions": [], "rows": [change]},
        "profile": profile(),
        **changes,
    }


def result(**changes):
    return parse_result(content(**changes))
