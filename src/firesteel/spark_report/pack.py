"""The zip file of a report: replaced as a whole whenever a part begins and ends, so that it is always readable."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from firesteel.errors import UserError
from firesteel.measure.record import Record, RecordError
from firesteel.spark_report.machine_log import MachineSample
from firesteel.spark_report.private import scrub, scrub_record
from firesteel.spark_report.report import PartReport, Report
from firesteel.spark_report.summary import summarise

TEXTS = ("*.html", "llama-benchy.*")  # files that are added without personal data


def check_writable(out: Path) -> None:
    """Raises if `out` cannot be written, without changing an existing file."""
    if not out.parent.is_dir():
        raise UserError(f"cannot write {out}: there is no folder {out.parent}")
    is_new = not out.exists()
    try:
        with out.open("ab"):
            pass
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}; choose another file with --out") from error
    if is_new:
        out.unlink()


def pack(out: Path, report: Report, folder: Path) -> None:
    """Writes a second file and renames it: a kill at any moment leaves the previous or the new zip, both whole."""
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.unfinished")
    content = {
        "made_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "quick": report.quick,
        "has_gpu": report.device.is_cuda,
        "planned": report.planned,
        "running": report.running,
        "surroundings": scrub(dataclasses.asdict(report.surroundings), report.model),
        "parts": [part.as_dict() for part in report.parts],
    }
    try:
        with unfinished.open("wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
                packed.writestr("report.json", json.dumps(content, indent=2) + "\n")
                packed.writestr("summary.md", summarise(report))
                packed.writestr("machine.csv", machine_csv(report.parts))
                _pack_files(packed, folder, report)
            file.flush()
            os.fsync(file.fileno())  # a machine that freezes is switched off
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)


def machine_csv(parts: list[PartReport]) -> str:
    """Returns memory, clocks, temperature and power over time, a row per sample."""
    text = io.StringIO()
    writer = csv.writer(text)
    columns = [declared.name for declared in dataclasses.fields(MachineSample)]
    writer.writerow(["part", *columns])
    for part in parts:
        writer.writerows([part.name, *dataclasses.astuple(sample)] for sample in part.machine)
    return text.getvalue()


def _pack_files(packed: zipfile.ZipFile, folder: Path, report: Report) -> None:
    """Adds records, charts and llama-benchy's files; other JSON files are results, which are in report.json."""
    for path in sorted(folder.rglob("*.json")):
        if (record := _load_record(path)) is not None:
            record = scrub_record(record, report.model)
            part = path.relative_to(folder).parts[0]
            packed.writestr(f"records/{part}/{record.file_name}", json.dumps(record.as_dict(), indent=2) + "\n")
    for path in sorted(path for pattern in TEXTS for path in folder.rglob(pattern)):
        text = scrub(path.read_text(encoding="utf-8", errors="replace"), report.model)
        packed.writestr(f"{path.relative_to(folder).parts[0]}-{path.name}", text)
    for path in sorted(folder.rglob("*.png")):
        packed.write(path, f"{path.relative_to(folder).parts[0]}-{path.name}")


def _load_record(path: Path) -> Record | None:
    """Returns None for a file of another kind."""
    try:
        return Record.load(path)
    except RecordError:
        return None
