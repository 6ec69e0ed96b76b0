"""Measures what the type of stored keys and values costs Kindling in perplexity. Knows no training.

python -m kindling.kv_precision   from the root of the checkout; records and scales: records/kindling-kv
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firesteel import LLM
from firesteel.calibrate import calibrate, read_prompts
from firesteel.engine.kv_scales import write_scales
from firesteel.eval import measure_perplexity
from firesteel.exam import TEXT, read_items
from firesteel.measure.record import Record

FOLDER = Path("records/kindling-kv")
SCALES = FOLDER / "scales.json"
NAME = "kindling perplexity"
KNOBS: dict[str, dict[str, Any]] = {
    "float32, as computed": {},
    "bf16": {"kv_dtype": "bf16"},
    "fp8, scale 1": {"kv_dtype": "fp8"},
    "fp8, calibrated scales": {"kv_dtype": "fp8", "kv_scales": str(SCALES)},
}


def measure(stored: str) -> Record:
    llm = LLM(device="cpu", **KNOBS[stored])
    perplexity, tokens = measure_perplexity(llm, read_items(TEXT))
    clipped = llm.engine.statistics().saturated_values
    return Record.now(
        llm.device, llm.settings.config, name=NAME, unit="perplexity", samples=[perplexity], warmups=0,
        parameters={"stored": stored, "tokens": tokens, "clipped": clipped}, kernels=llm.kernels.table(),
    )  # fmt: skip


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    llm = LLM(device="cpu")
    write_scales(SCALES, calibrate(llm, read_prompts(llm, None)).scales)
    for stored in KNOBS:
        record = measure(stored)
        print(record.save(FOLDER), record.median)


if __name__ == "__main__":
    main()
