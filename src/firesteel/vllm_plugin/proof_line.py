"""The log line that proves which kernels run: ops, implementations, and verdicts on their machine code."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from firesteel.engine.process.verdicts import Verdicts
from firesteel.kernels.ledger import Ledger
from firesteel.version import NOT_INSTALLED, find_version

_log = logging.getLogger("vllm.firesteel")


class ProofLine:
    """Logs the line once the machine code of all launched kernels was read, in the background."""

    def __init__(
        self, ledger: Ledger, *, rank: int, num_ranks: int, vllm_version: str, settings: Mapping[str, str]
    ) -> None:
        """`settings` are written after the ops, such as sinks=on."""
        self.ledger = ledger
        self.settings = settings
        ours = find_version()
        version = "of the sources" if ours == NOT_INSTALLED else ours
        self.heading = f"rank {rank} of {num_ranks}: gpt-oss plugin {version} in vLLM {vllm_version}"
        self._verdicts = Verdicts()
        self._is_begun = False

    def begin(self) -> None:
        """Called when kernels have run; does nothing the second time."""
        if self._is_begun:
            return
        self._is_begun = True
        if any(launch.compiled is not None for entry in self.ledger.entries.values() for launch in entry.launches):
            self._verdicts.read(self.ledger, self.log)
        else:
            self.log()

    def log(self) -> None:
        _log.info("firesteel: %s; %s", self.heading, ", ".join(self.rows()))

    def rows(self) -> list[str]:
        """Returns OP=IMPLEMENTATION ACTIVATIONS[VERDICTS] of everything that ran, and the settings."""
        rows = []
        for ran, entry in sorted(self.ledger.entries.items(), key=lambda item: item[0]):
            verdicts = sorted({self._verdicts.find(launch) or "unread" for launch in entry.launches})
            words = " ".join(filter(None, (f"{ran.op}={ran.implementation}", ran.activation)))
            rows.append(words + (f"[{'+'.join(verdicts)}]" if verdicts else ""))
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        return [*dict.fromkeys(rows), *settings]
