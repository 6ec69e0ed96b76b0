"""The baseline of later runs with the same settings: where its file is and what it holds.

The first run with a valid benchmark is kept, and stays: compared with the last run only, many small losses would go
unnoticed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from firesteel.lab.history import hash_settings
from firesteel.lab.result import LabResult
from firesteel.lab.spec import LabSpec

FOLDER = "baselines"


def find_baseline(spec: LabSpec, device: str, folder: Path) -> Path:
    """Returns the file for these settings and this device, so that only comparable runs are compared."""
    words = [spec.url or spec.shown_engine, Path(spec.model).name, "quick" if spec.quick else "full"]
    name = re.sub(r"[^\w.]+", "-", "-".join(words)).strip("-")[:60]
    return folder / FOLDER / f"{name}-{hash_settings(spec, device)}.json"


def keep_baseline(result: LabResult, path: Path) -> None:
    """Writes what a comparison reads, not the whole result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = result.as_dict()
    kept = {name: content[name] for name in ("time_utc", "order", "surroundings")}
    kept["bench"] = result.counted_bench().as_dict()
    path.write_text(json.dumps(kept, default=str) + "\n", encoding="utf-8")
