"""Errors of docker and podman themselves, with their cures: nothing of the server has run yet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from firesteel.lab.servers.diagnosis import Diagnosis, diagnose_exit

# The first match counts.
CURES = (
    (
        r"permission denied.*docker[\w.]*sock|docker[\w.]*sock.*permission denied",
        "this user may not use docker: add it to the group docker, or use --engine 'sudo docker run ...'",
    ),
    (r"cannot connect to the docker daemon|docker daemon running", "start the daemon: sudo systemctl start docker"),
    (
        r"could not select device driver|unresolvable CDI devices|unknown or invalid runtime name"
        r"|nvidia-container-cli",
        "install the NVIDIA Container Toolkit and run `nvidia-ctk runtime configure`",
    ),
    (
        r"pull access denied|manifest unknown|manifest for .* not found|no such image|repository .*not exist"
        r"|image not known|requested access to the resource is denied|unable to find image|no such host",
        "check the image's name and tag; an image from this machine must have been built or loaded before",
    ),
    (
        r"name .*is already in use",
        "a container of this name is there: remove it (`docker rm -f NAME`), or leave out --name",
    ),
    (r"unknown (shorthand )?flag|unknown option", "the container's runtime does not know this option"),
    (r"executable file not found|no such file or directory", "the image has no such program: check its command"),
    (r"invalid mount|bind source path does not exist|statfs", "a folder to mount with -v does not exist"),
)
NOT_STARTED = "container"  # kind of diagnosis


def diagnose_start(code: int, lines: Sequence[str]) -> Diagnosis:
    """Diagnoses a container that could not be pulled, created or started, by what the runtime printed."""
    known = diagnose_exit(code, lines, step="the start of its container")
    if known.kind == "port-in-use":
        return known
    evidence = tuple(line.strip() for line in lines if line.strip())
    for pattern, cure in CURES:
        if matches := tuple(line for line in evidence if re.search(pattern, line, re.IGNORECASE)):
            return replace(known, kind=NOT_STARTED, words=_words(code), cure=cure, evidence=matches[-1:])
    return replace(known, kind=NOT_STARTED, words=_words(code), evidence=evidence[-5:])


def _words(code: int) -> str:
    return f"its container was not started (exit code {code})"
