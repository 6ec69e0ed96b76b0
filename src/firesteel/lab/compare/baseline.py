"""The run that later runs of the same order are held to: where it lies and what is kept of it; compares nothing.

The first run whose benchmark counts is kept, and stays: held to the last one, many small losses would go unseen.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firesteel.lab.compare.compare import find_bench
from firesteel.lab.spec import Order

FOLDER = "baselines"
# Of an order: what decides which figures can be held to each other.
FIELDS = ("engine", "url", "model", "flags", "path", "quick", "debug", "seed")


def find_place(order: Order, device: str, folder: Path) -> Path:
    """A file for each order and device, so that none is held to another's figures."""
    content = order.as_dict()
    key = [*(content[name] for name in FIELDS), device]
    digest = hashlib.sha256(json.dumps(key, default=list).encode()).hexdigest()[:8]
    words = [order.url or order.shown_engine, Path(order.model).name, "quick" if order.quick else "full"]
    name = re.sub(r"[^\w.]+", "-", "-".join(words)).strip("-")[:60]
    return folder / FOLDER / f"{name}-{digest}.json"


def counts(result: Mapping[str, Any]) -> bool:
    """Whether its benchmark was measured without a failure, on the path that was asked for."""
    return any(one["level"] == "4" and one["passed"] and one["valid"] for one in result.get("levels") or ())


def keep(result: Mapping[str, Any], place: Path) -> None:
    """What a comparison reads, not the whole result."""
    place.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: result[name] for name in ("time_utc", "order", "surroundings")}
    place.write_text(json.dumps({**kept, "bench": find_bench(result)}, default=str) + "\n", encoding="utf-8")
