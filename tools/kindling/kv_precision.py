"""Measures the cost in perplexity of each format of Kindling's keys and values.

python -m kindling.kv_precision   from the root of the checkout; records and scales: records/kindling-kv
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from firesteel import LLM
from firesteel.calibrate import calibrate, read_prompts
from firesteel.engine.cache.kv_scales import write_scales
from firesteel.eval import measure_perplexity
from firesteel.exam import TEXT, read_items
from firesteel.measure.record import Record

FOLDER = Path("records/kindling-kv")
SCALES = FOLDER / "scales.json"
NAME = "kindling perplexity"
CALIBRATED = "fp8, calibrated scales"
KNOBS: dict[str, dict[str, Any]] = {
    "float32, as computed": {},
    "bf16": {"kv_dtype": "bf16"},
    "fp8, scale 1": {"kv_dtype": "fp8"},
    CALIBRATED: {"kv_dtype": "fp8"},
}


def measure(stored: str, scales: Path) -> Record:
    """Measures a format; the record names the final file of the scales."""
    llm = LLM(device="cpu", kv_scales=str(scales) if stored == CALIBRATED else "", **KNOBS[stored])
    config = llm.settings.config
    if stored == CALIBRATED:
        config = replace(config, cache=replace(config.cache, kv_scales=str(SCALES)))
    perplexity, tokens = measure_perplexity(llm, read_items(TEXT))
    clipped = llm.engine.statistics().saturated_values
    return Record.now(
        llm.device,
        config,
        name=NAME,
        unit="perplexity",
        samples=[perplexity],
        warmups=0,
        parameters={"stored": stored, "tokens": tokens, "clipped": clipped},
        kernels=llm.kernels.table(),
    )


def main() -> None:
    """Measures all formats; old records stay until all are measured."""
    with TemporaryDirectory() as folder:
        scales, llm = Path(folder) / SCALES.name, LLM(device="cpu")
        write_scales(scales, calibrate(llm, read_prompts(llm, None)).scales)
        records = [measure(stored, scales) for stored in KNOBS]
        replace_files(scales, records)


def replace_files(scales: Path, records: Sequence[Record]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    shutil.copy(scales, SCALES)
    for record in records:
        print(record.save(FOLDER), record.median)


if __name__ == "__main__":
    main()
