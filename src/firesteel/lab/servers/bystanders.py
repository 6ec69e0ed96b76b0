"""Programs that ran before a server was started: what the kernel says about them is not about the server.

A process of the server may crash before it was ever seen, so a message is dropped only if it is known to be about
another program: by its pid or thread, or by a name that no process of the server has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from firesteel.lab.memory.gpu import is_initial_namespace
from firesteel.lab.servers.kernel_messages import FAULT, HARDWARE, VICTIMS, XID

COMM = 15  # characters that the kernel keeps of a name
# Messages that name a process or a thread.
NAMED = (
    # "python3[24962]: segfault at 0", "traps: python3[4] general protection"; after a time or "kernel: "
    re.compile(r"(?:^|\] |: )(?:traps: )?(?P<name>[^\[\]]{1,15})\[(?P<pid>\d+)\]:? (?:segfault|general|trap)"),
    *VICTIMS,
    FAULT,
)


@dataclass(frozen=True, slots=True)
class Bystanders:
    names: Mapping[int, str]  # of threads, by number

    @classmethod
    def now(cls) -> Bystanders:
        names = {}
        for thread in Path("/proc").glob("[0-9]*/task/[0-9]*"):
            with suppress(OSError):
                names[int(thread.name)] = (thread / "comm").read_text(encoding="utf-8", errors="replace").strip()
        return cls(names)

    def are_meant(self, line: str, ours: Mapping[int, str]) -> bool:
        """Returns True if a kernel message is about one of them; `ours` are pids and names of the server."""
        match = next((match for pattern in NAMED if (match := pattern.search(line))), None)
        xid = XID.search(line)
        is_shared = xid is not None and int(xid["number"]) in HARDWARE  # hits every process of the GPU
        if match is None or is_shared or int(match["pid"]) in ours:
            return False
        if int(match["pid"]) in self.names and is_initial_namespace():
            return True
        own = {name[:COMM] for name in ours.values()}
        return bool(own) and match["name"] in self.names.values() and match["name"] not in own
