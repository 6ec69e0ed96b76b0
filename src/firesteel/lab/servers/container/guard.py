"""Removes the containers of a lab that was killed: a shell that waits for the end of a pipe from the lab.

Containers are children of a daemon, so nothing else would stop them. The pipe ends however the lab ends.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress

from firesteel.lab.servers.container.runtime import LABEL, ContainerRuntime

# A line means that the lab has removed them itself. A container may appear a moment later: `run` was under way.
GUARD = """
read -r done && exit 0
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    containers=$("$@" ps --all --quiet --no-trunc --filter "label=$LABEL")
    [ -n "$containers" ] && "$@" rm --force --volumes $containers && exit 0
    sleep 1
done
"""


class ContainerGuard:
    def __init__(self, runtime: ContainerRuntime, server: str) -> None:
        script = GUARD.replace("$LABEL", f"{LABEL}={server}")
        self._shell = subprocess.Popen(
            ["sh", "-c", script, "container-guard", *runtime.program],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        assert self._shell.stdin is not None
        with suppress(BrokenPipeError):
            self._shell.stdin.write(b"done\n")
            self._shell.stdin.close()
        self._shell.wait()
