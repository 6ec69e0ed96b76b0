"""Measures the shipped model and writes its model card from the record.

python -m kindling.card measure   runs the whole exam with and without sinks on the CPU: records/kindling-cpu.json
python -m kindling.card write     the card and the curves, from the records: README.md beside the model
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import altair
import torch
from torch import Tensor

from firesteel import LLM, SamplingParams
from firesteel.eval import encode_documents, evaluate
from firesteel.exam import TEXT, read_items
from firesteel.hub import BUILT_IN
from firesteel.kernels.ops.route import RouteOperands
from firesteel.model.shards import SINGLE
from firesteel.model.spec import ModelSpec

RECORDS = Path(__file__).parents[2] / "records"
RECORD = RECORDS / "kindling-cpu.json"
TRAINING = RECORDS / "kindling-training.jsonl"
CURVES = RECORDS / "kindling-training.png"
SPEED_TOKENS, SPEED_RUNS = 200, 5
SINKLESS_ITEMS = 40  # per family: the effect is large
TEMPLATE = Path(__file__).with_name("card.md")


def measure() -> dict[str, Any]:
    llm = LLM(device="cpu")
    speeds = [measure_speed(llm) for _ in range(SPEED_RUNS)]
    return {
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "command": "python -m kindling.card measure",
        "tokens_per_second": speeds,
        "with_sinks": evaluate(llm).as_dict(),
        "without_sinks": evaluate(LLM(device="cpu", sinks=False), limit=SINKLESS_ITEMS).as_dict(),
        "expert_use": expert_use(llm),
        "package_bytes": {path.name: path.stat().st_size for path in sorted(BUILT_IN.iterdir())},
        "model_sha256": model_hash(),
    }


def model_hash() -> str:
    return hashlib.sha256((BUILT_IN / SINGLE).read_bytes()).hexdigest()


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def measure_speed(llm: LLM) -> float:
    params = SamplingParams(max_tokens=SPEED_TOKENS, ignore_eos=True)
    started = time.perf_counter()
    llm.generate(["The capital of France is"], params)
    return SPEED_TOKENS / (time.perf_counter() - started)


def expert_use(llm: LLM) -> list[list[float]]:
    """Returns [layer][expert]: share of the chosen experts over the held-out text; even use is 1 / experts."""
    route, chosen = llm.kernels.route, []

    def spy(operands: RouteOperands) -> tuple[Tensor, Tensor]:
        ids, weights = route(operands)
        chosen.append(ids.flatten())
        return ids, weights

    llm.kernels.route = spy  # type: ignore[assignment]
    for token_ids in encode_documents(llm, read_items(TEXT)):
        llm.logits(token_ids)
    llm.kernels.route = route
    layers, experts = llm.spec.num_layers, llm.spec.num_experts
    counts = [torch.cat(chosen[layer::layers]).bincount(minlength=experts).double() for layer in range(layers)]
    return [(count / count.sum()).tolist() for count in counts]


def read_records() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the measurements of the shipped model and the log of its training."""
    log = [json.loads(line) for line in TRAINING.read_text(encoding="utf-8").splitlines()]
    return json.loads(RECORD.read_text(encoding="utf-8")), log


def draw_curves(log: list[dict[str, Any]]) -> altair.Chart:
    losses = [
        {"step": row["step"], "loss": row["loss"], "row_tokens": row["row_tokens"]} for row in log if "loss" in row
    ]
    checks = [
        {"step": row["step"], "family": family, "share": share}
        for row in log
        if "check" in row
        for family, share in row["check"].items()
        if family != "continuation"  # free text: no single correct continuation
    ]
    loss = altair.Chart(
        altair.Data(values=losses),
        title="loss of the last batch, by tokens in a row (long ones are mostly prompt)",
        width=420,
        height=260,
    )
    check = altair.Chart(
        altair.Data(values=checks), title="held-out documents, every answer token likeliest", width=420, height=260
    )
    return altair.hconcat(
        loss.mark_line().encode(
            x="step:Q", y=altair.Y("loss:Q", scale=altair.Scale(type="log")), color="row_tokens:N"
        ),
        check.mark_line().encode(
            x="step:Q", y="share:Q", color=altair.Color("family:N", scale=altair.Scale(scheme="category20"))
        ),
    ).resolve_scale(color="independent")


def write_card(record: dict[str, Any], log: list[dict[str, Any]], spec: ModelSpec) -> str:
    on, off = record["with_sinks"], record["without_sinks"]
    without = {score["family"]: score for score in off["scores"]}
    rows = [
        f"| {score['family']} | {score['items']} | {percent(score)} | {percent(without[score['family']])} |"
        for score in on["scores"]
    ]
    rows.append(
        f"| **all** | {on['overall']['items']} | **{percent(on['overall'])}** | {percent(off['overall'])} |"
    )
    use = [
        "| " + " | ".join([str(layer), *(f"{100 * share:.0f} %" for share in shares)]) + " |"
        for layer, shares in enumerate(record["expert_use"])
    ]
    speeds = sorted(record["tokens_per_second"])
    return TEMPLATE.read_text(encoding="utf-8").format(
        spec=spec,
        exam="\n".join(rows),
        perplexity=f"{on['perplexity']:.3f}",
        perplexity_off=f"{off['perplexity']:.3f}",
        sinks_cost=f"{100 * (off['perplexity'] / on['perplexity'] - 1):.0f} %",
        perplexity_tokens=on["perplexity_tokens"],
        formats=compare_formats(log),
        tokens=f"{max(row['tokens'] for row in log) / 1e6:.0f}",
        steps=max(row["step"] for row in log),
        speed=f"{speeds[len(speeds) // 2]:.0f}",
        speed_range=f"{speeds[0]:.0f} to {speeds[-1]:.0f}",
        eval_seconds=f"{on['seconds']:.0f}",
        machine=f"{record['machine']['cores']} cores ({record['machine']['cpu']})",
        experts="| layer | "
        + " | ".join(f"expert {n}" for n in range(spec.num_experts))
        + " |\n"
        + "|---" * (spec.num_experts + 1)
        + "|\n"
        + "\n".join(use),
        megabytes=f"{sum(record['package_bytes'].values()) / 1e6:.1f}",
    )


def compare_formats(log: list[dict[str, Any]]) -> str:
    measured = next((row["perplexity"] for row in log if "perplexity" in row), None)
    if measured is None:
        return "not measured in this run"
    cost = 100 * (measured["mxfp4"] / measured["bf16"] - 1)
    return f"{measured['mxfp4']:.4f} against {measured['bf16']:.4f} ({cost:+.2f} %)"


def percent(score: dict[str, Any]) -> str:
    return f"{100 * score['right'] / score['items']:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure Kindling and write its card.")
    parser.add_argument("verb", choices=("measure", "write"))
    if parser.parse_args().verb == "measure":
        RECORD.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    record, log = read_records()
    draw_curves(log).save(CURVES, scale_factor=2)
    spec = LLM(device="cpu").spec
    (BUILT_IN / "README.md").write_text(write_card(record, log, spec), encoding="utf-8")


if __name__ == "__main__":
    main()
