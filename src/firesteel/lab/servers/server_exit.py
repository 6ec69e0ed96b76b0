"""The exit of a server: by itself or by a signal, cleanly or not."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from firesteel.lab.servers.processes import ProcessInfo

BY_ITSELF, ON_SIGTERM = "by itself", "on SIGTERM"
# A server that hangs is aborted first; how it exits then says nothing about it.
FOR_STACKS = "on SIGABRT, sent first for its stacks"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerExit:
    how: str  # BY_ITSELF, ON_SIGTERM, FOR_STACKS, "on SIGABRT" or "on SIGKILL"
    exit_code: int | None
    seconds: float
    orphans: tuple[ProcessInfo, ...] = ()  # processes that outlived the first one and were killed
    port_is_free: bool = True
    container_left: str = ""  # why its container could not be removed

    @property
    def is_clean(self) -> bool:
        return (
            self.how in (BY_ITSELF, ON_SIGTERM) and not (self.orphans or self.container_left) and self.port_is_free
        )

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "is_clean": self.is_clean, "words": self.in_words()}

    def in_words(self) -> str:
        left = ", ".join(process.in_words() for process in self.orphans)
        orphans = [f"left {left} behind"] if self.orphans else []
        port = [] if self.port_is_free else ["its port is still taken"]
        container = [f"its container was not removed: {self.container_left}"] if self.container_left else []
        return "; ".join([f"exited {self.how} within {self.seconds:.1f} s", *orphans, *port, *container])
