"""Compares firesteel's ledger with a profiler on the GPU, in a separate process before the server starts.

A running server occupies the GPU's memory, and a profiler would slow it. So `firesteel generate --ledger` loads the
same model and settings once for a short text; it fails if the two differ or a requirement is not met.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from firesteel.config import all_settings, resolve
from firesteel.config.vllm_flags import spell_ours

PROMPT = "The capital of France is"
TIMEOUT_S = 1800.0
SHOWN = 300  # characters of an error
AGREES = "ledger and profiler agree:"  # start of the last line of `generate --ledger` on a GPU


def cross_check(model: str, flags: Sequence[str], folder: Path) -> str:
    """Returns what is wrong; empty if nothing is. The ledger's table is kept in `cross-check.txt`."""
    command = [
        *(sys.executable, "-m", "firesteel", "generate", "--ledger"),
        *("--model", model, "--prompt", PROMPT, "--max-tokens", "8"),
        *model_flags(flags),
    ]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"generate --ledger did not finish in {TIMEOUT_S:.0f} s"
    (folder / "cross-check.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode != 0:
        return done.stderr.strip()[-SHOWN:] or f"generate --ledger exited with code {done.returncode}"
    has_agreed = any(line.startswith(AGREES) for line in done.stdout.splitlines())
    return "" if has_agreed else "generate --ledger does not report that a profiler agrees: see cross-check.txt"


def find_device_name(flags: Sequence[str]) -> str:
    """Returns the device of a server with these flags: auto, cpu, cuda or cuda:N, by flag, environment or file."""
    words = [word for flag in flags for word in flag.split("=", 1)]
    given = [value for name, value in itertools.pairwise(words) if name == "--device"]
    return resolve({"device": given[-1] if given else None}).config.model.device


def model_flags(flags: Sequence[str]) -> list[str]:
    """Returns those of a server's flags that decide how the model is computed, in our spelling."""
    kept: list[str] = []
    words = list(flags)
    while words:
        written = [words.pop(0)]
        name, equals, value = written[0].partition("=")
        if not equals and words and not words[0].startswith("--"):
            written.append(words.pop(0))
        given = value if equals else written[-1] if len(written) > 1 else None
        for ours, meant in spell_ours(name, given):
            setting = next(
                (known for known in all_settings().values() if ours in _spellings(known.name, known.off_flag)), None
            )
            if setting is not None and setting.section != "server":
                kept += written if ours == name else [ours] if meant is None else [ours, meant]
    return kept


def _spellings(name: str, off_flag: str) -> tuple[str, ...]:
    flag = name.replace("_", "-")
    return (f"--{flag}", f"--no-{flag}", off_flag)
