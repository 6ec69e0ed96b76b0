"""Runs the program llama-benchy, unmodified, against a firesteel server that lives as long as the run."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.lab.client.api import Api
from firesteel.lab.servers.bundle import read_tail
from firesteel.lab.servers.commands import HOST, find_key, make_command
from firesteel.lab.servers.shutdown import run_child
from firesteel.lab.servers.supervisor import SupervisedServer, find_free_port

PROGRAM, MODULE = "llama-benchy", "llama_benchy"
REPORT, OUTPUT = f"{PROGRAM}.json", f"{PROGRAM}.txt"
SHOWN_LINES = 20  # of its output, in an error
GRACE_S = 10.0  # from SIGTERM to SIGKILL
# It uses a proxy of the environment for every address, that of the server included.
NO_PROXY = {"NO_PROXY": HOST, "no_proxy": HOST}
NOT_INSTALLED = (
    f"{PROGRAM} is neither in this Python environment nor on PATH; install it with `pip install {PROGRAM}`"
)
NO_BOOK_SIGN = "Error downloading or processing book"
NO_BOOK = (
    f"{PROGRAM} found no book for its prompts, which it downloads once; connect this machine to the network, or "
    f"copy ~/.cache/{PROGRAM} from one on which it ran"
)
OTHER_TOKENIZER_SIGN = "Falling back to 'gpt2' tokenizer"


class BenchyUnavailable(UserError):
    """Something that llama-benchy needs is missing on this machine; `output` is the end of what it printed."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(f"{reason}; it printed:\n{output}" if output else reason)
        self.reason, self.output = reason, output

    def as_dict(self) -> dict[str, str]:
        return {"not_measured": self.reason, "output": self.output}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchyPlan:
    """Sizes in tokens; every combination is measured, with one request at a time."""

    pp: tuple[int, ...]
    tg: tuple[int, ...]
    depths: tuple[int, ...]
    runs: int
    limit_s: float

    def flags(self) -> list[str]:
        return [
            *("--pp", *map(str, self.pp)),
            *("--tg", *map(str, self.tg), "--exact-tg"),
            *("--depth", *map(str, self.depths)),
            *("--runs", str(self.runs)),
            *("--latency-mode", "generation", "--no-cache", "--exit-on-first-fail"),
        ]


def find_benchy() -> list[str]:
    """Returns the words that start llama-benchy, from this Python environment if it is there, else from PATH."""
    if find_spec(MODULE) is not None:
        return [sys.executable, "-m", MODULE]
    if (program := shutil.which(PROGRAM)) is not None:
        return [program]
    raise BenchyUnavailable(NOT_INSTALLED)


def run_benchy(plan: BenchyPlan, model: str, folder: Path, flags: Sequence[str] = ()) -> dict[str, Any]:
    """Starts a server, runs llama-benchy and returns its report; `folder` keeps the report and its output."""
    program, checkpoint = find_benchy(), find_checkpoint(model)
    report, output = folder / REPORT, folder / OUTPUT
    report.unlink(missing_ok=True)
    command = make_command(
        "firesteel", model=str(checkpoint), port=find_free_port(), folder=folder, flags=tuple(flags)
    )
    with SupervisedServer(command, folder) as server:
        key = find_key(flags)
        served, _ = Api.of(command.url, key).find_model()
        words = [*program, "--base-url", f"{command.url}/v1", "--model", served, "--tokenizer", str(checkpoint)]
        words += [*plan.flags(), "--format", "json", "--save-result", str(report)]
        words += ["--api-key", key] if key else []
        server.step = PROGRAM
        code = run_child(words, output, timeout_s=plan.limit_s, grace_s=GRACE_S, environment=NO_PROXY)
        server.check()
    return read_report(report, output, code, plan.limit_s)


def read_report(report: Path, output: Path, code: int | None, limit_s: float) -> dict[str, Any]:
    """Returns the report of a run that exited with `code`, None if it was stopped; raises if it did not succeed."""
    text = output.read_text(encoding="utf-8", errors="replace")
    tail = "\n".join(read_tail(output, SHOWN_LINES))
    if NO_BOOK_SIGN in text:
        raise BenchyUnavailable(NO_BOOK, tail)
    if code is None:
        raise UserError(f"{PROGRAM} was stopped after {limit_s:.0f} s; raise --limit-s; it printed:\n{tail}")
    if code or not report.is_file():
        raise UserError(f"{PROGRAM} exited with code {code}; it printed:\n{tail}")
    if OTHER_TOKENIZER_SIGN in text:
        raise UserError(
            f"{PROGRAM} could not read the checkpoint's tokenizer and took another; it printed:\n{tail}"
        )
    return dict(json.loads(report.read_text(encoding="utf-8")))
