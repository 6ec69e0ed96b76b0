"""Runs every check that this machine supports and packs the results into one file.

Each part is a firesteel command in its own process: one that fails, or crashes the GPU, is in the report with its
exit code and the end of its stderr, and the others still run. Paths of home folders are removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from firesteel.config import hide_in_text
from firesteel.device import GIB, DeviceSpec
from firesteel.errors import KernelError, UserError
from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.kernels.target import find_target
from firesteel.measure.record import Record
from firesteel.plot import PlotError, check_libraries
from firesteel.surroundings import look_around

PATIENCE_S = 3600  # per part
TIMED_OUT = 124
LAST_WORDS = 4000  # characters of stderr that are kept
QUICK_M = {True: "1,16,256,2048", False: "1"}  # by is_cuda
DECODED = {"gpt-oss-20b": 20, "gpt-oss-120b": 80}  # GiB of memory that a GPU needs for its weights and steps
DECODE_SIZES = {True: ("--steps", "50", "--check", "32"), False: ("--batch", "1,8", "--context", "2048,8192")}
HOME = re.compile(r"/(?:home|Users)/[^/\s\"':]+|/root(?=[/\s\"':]|$)")
T = TypeVar("T")
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCommand:
    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReport:
    name: str
    command: str
    exit_code: int
    seconds: float
    result: Any  # parsed JSON of the command, None if it printed none
    last_words: str  # end of stderr


def list_parts(device: DeviceSpec, folder: Path, *, quick: bool) -> list[ReportCommand]:
    hurry = ("--quick",) if quick else ()
    return [
        ReportCommand(name="doctor", arguments=("doctor", "--json")),
        ReportCommand(name="verify", arguments=("verify", "--json", *hurry)),
        ReportCommand(name="prove", arguments=("prove", "--json", "--target", proof_target(device))),
        *_list_benches(device, folder, quick),
    ]


def _list_benches(device: DeviceSpec, folder: Path, quick: bool) -> Iterator[ReportCommand]:
    """Yields a part per activation, with its own folder: kernels that crash the GPU affect one activation only."""
    plot = () if can_plot() else ("--no-plot",)
    sizes = ("--m", QUICK_M[device.is_cuda]) if quick else ()
    for activation in ACTIVATIONS if device.is_cuda else ACTIVATIONS[:1]:
        name = f"bench-{activation}"
        asked = ("bench", "ops", "--json", "--activation", activation, *sizes)
        yield ReportCommand(name=name, arguments=(*asked, "--out", str(folder / name), *plot))
    for model in DECODED:
        if why_not_decoded(model, device, quick=quick):
            continue
        for layers in ("", "qkv,o,lm_head"):
            name = f"decode-{model}" + ("-mxfp4-layers" if layers else "")
            asked = ("bench", "decode", "--synthetic", model, "--json", *DECODE_SIZES[quick])
            mxfp4 = ("--mxfp4-layers", layers) if layers else ()
            yield ReportCommand(name=name, arguments=(*asked, *mxfp4, "--out", str(folder / name), *plot))


def why_not_decoded(model: str, device: DeviceSpec, *, quick: bool) -> str | None:
    """Returns why no step of the model is timed here, or None."""
    if not device.is_cuda:
        return "steps are timed on a GPU only"
    if device.memory_bytes < DECODED[model] * GIB:
        return f"needs {DECODED[model]} GiB, {device.name} has {device.memory_bytes / GIB:.0f}"
    return "--quick times the smaller model only" if quick and model != next(iter(DECODED)) else None


def can_plot() -> bool:
    try:
        check_libraries()
    except PlotError:
        return False
    return True


def proof_target(device: DeviceSpec) -> str:
    """Returns the target of this GPU, or that of GB10 if there is no GPU or we cannot compile for it."""
    if device.capability is None:
        return "sm_121a"
    try:
        return find_target(device.capability)
    except KernelError:
        return "sm_121a"


def make_report(
    device: DeviceSpec, out: Path, *, quick: bool = False, tell: Tell = print, command: tuple[str, ...] = ()
) -> list[PartReport]:
    """Runs all parts and writes `out`, a zip file; `command` starts firesteel."""
    check_writable(out)
    start = command or (sys.executable, "-m", "firesteel")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = list_parts(device, folder, quick=quick)
        reports: list[PartReport] = []
        try:
            for number, part in enumerate(parts, start=1):
                tell(f"{number} of {len(parts)}: {part.name} ...")
                reports.append(_run(part, start))
                tell(f"   {_outcome(reports[-1])} after {reports[-1].seconds:.0f} s")
        finally:
            _pack(out, device, reports, folder, quick)
            if len(reports) < len(parts):
                tell(f"ended early: {len(reports)} of {len(parts)} parts are in {out}")
    return reports


def check_writable(out: Path) -> None:
    """Raises if `out` cannot be written, without changing an existing file."""
    if not out.parent.is_dir():
        raise UserError(f"cannot write {out}: there is no folder {out.parent}")
    try:
        with out.open("ab"):
            pass
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}; choose another file with --out") from error


def _run(part: ReportCommand, start: tuple[str, ...]) -> PartReport:
    begun = time.monotonic()
    command = [*start, *part.arguments]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=PATIENCE_S, check=False)
        exit_code, stdout, stderr = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        exit_code, stdout, stderr = TIMED_OUT, "", f"stopped after {PATIENCE_S} s"
    return PartReport(
        name=part.name,
        command=scrub(" ".join(("firesteel", *part.arguments))),
        exit_code=exit_code,
        seconds=round(time.monotonic() - begun, 1),
        result=scrub(_parse(stdout)),
        last_words=scrub(stderr[-LAST_WORDS:]),
    )


def _parse(stdout: str) -> Any:
    """Parses the result; None if the command died before it printed one."""
    try:
        return json.loads(stdout)
    except ValueError:
        return None


def scrub(value: T) -> T:
    """Removes secrets and the paths of home folders and of the temporary folder from all texts in a value."""
    if isinstance(value, str):
        return _hide_home(hide_in_text(value)).replace(tempfile.gettempdir(), "TMP")  # type: ignore[return-value]
    if isinstance(value, dict):
        return {scrub(key): scrub(item) for key, item in value.items()}  # type: ignore[return-value]
    if isinstance(value, list | tuple):
        return type(value)(scrub(item) for item in value)
    return value


def _hide_home(text: str) -> str:
    """Replaces home folders by ~: usual places, and that of the user unless that is / or unknown."""
    home = Path("~")
    with contextlib.suppress(RuntimeError):
        home = Path.home()
    text = HOME.sub("~", text)
    return text.replace(str(home), "~") if len(home.parts) > 1 else text


def _pack(out: Path, device: DeviceSpec, reports: list[PartReport], folder: Path, quick: bool) -> None:
    content = {
        "made_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "quick": quick,
        "has_gpu": device.is_cuda,
        "surroundings": scrub(dataclasses.asdict(look_around(device))),
        "parts": [dataclasses.asdict(report) for report in reports],
    }
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("report.json", json.dumps(content, indent=2) + "\n")
        packed.writestr("summary.md", summarise(device, reports, quick=quick))
        for path in sorted(folder.rglob("*.json")):
            record = _scrubbed(Record.load(path))
            packed.writestr(f"records/{record.file_name}", json.dumps(record.as_dict(), indent=2) + "\n")
        for path in sorted([*folder.rglob("*.html"), *folder.rglob("*.png")]):
            packed.write(path, f"{path.parent.name}-{path.name}")


def _scrubbed(record: Record) -> Record:
    around = record.surroundings
    around = dataclasses.replace(around, environment=scrub(around.environment), command=scrub(around.command))
    return dataclasses.replace(
        record, config=scrub(record.config), parameters=scrub(record.parameters), surroundings=around
    )


def summarise(device: DeviceSpec, reports: list[PartReport], *, quick: bool) -> str:
    """Returns a summary in Markdown, part by part."""
    shown = device.name if device.is_cuda else "no GPU was found: only the CPU was measured, no kernel ran"
    lines = [f"# firesteel on {device.name}", "", f"- device: {shown}", f"- quick: {'yes' if quick else 'no'}"]
    lines += [f"- {part.name}: {_outcome(part)}, {part.seconds:.0f} s; {_counts(part)}" for part in reports]
    left_out = {model: why_not_decoded(model, device, quick=quick) for model in DECODED}
    lines += [f"- decode-{model}: left out: {why}" for model, why in left_out.items() if why]
    failed = [part for part in reports if part.exit_code]
    for part in failed:
        lines += ["", f"## {part.name} (exit code {part.exit_code})", "", "```", part.last_words.strip(), "```"]
    return "\n".join(lines) + "\n"


def _outcome(report: PartReport) -> str:
    return "done" if report.exit_code == 0 else f"FAILED (exit code {report.exit_code})"


def _counts(report: PartReport) -> str:
    if report.result is None:
        return "no result"
    kind = report.name.partition("-")[0]
    if kind == "decode":
        speeds = "batch {batch} at {context} tokens: {tok_s:.1f} tok/s"
        return ", ".join(speeds.format(**row) for row in report.result) or "nothing"
    key = {"doctor": "status", "verify": "status", "prove": "verdict", "bench": "bound"}[kind]
    counts: dict[str, int] = {}
    for row in report.result:
        word = str(row.get(key, "not measured"))
        counts[word] = counts.get(word, 0) + 1
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "nothing"
