"""The server under test: its API, its limits, and its processes if the lab started it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.codec import to_json
from firesteel.lab.memory.footprint import Footprint
from firesteel.lab.path.engine_rules import load_rules
from firesteel.lab.path.imports import MODULES, ServerImports, find_imports
from firesteel.lab.path.ledger import ServerLedger, parse_ledger
from firesteel.lab.servers.supervisor import SupervisedServer

DEFAULT_CONTEXT = 4096  # of a server that does not state it
PROOFS_S = 60.0  # for a server to read the machine code of one more kernel
PROOFS_POLL_S = 0.5


@dataclass(slots=True, kw_only=True)
class Target:
    api: Api
    kind: str  # whose rules apply: one of commands.KINDS, or "other"
    folder: Path
    model: str  # as the server was told; of a server that was running already, as it reports
    server: SupervisedServer | None = None  # None if the server was running already
    max_context: int = DEFAULT_CONTEXT
    on_progress: Callable[[str], None] = field(default=lambda words: None)
    _imports: ServerImports | None = field(default=None, init=False)

    @contextmanager
    def step(self, words: str) -> Iterator[None]:
        """Names the requests inside, for progress and diagnosis.

        A failed request becomes a ServerFailed if the lab started the server.
        """
        self.on_progress(words)
        if self.server is not None:
            self.server.step = words
            self.server.check()
        try:
            yield
        except RequestFailed as error:
            raise self._failure(error) from error

    def _failure(self, error: RequestFailed) -> Exception:
        """Diagnoses with the server's log, which exists only if the lab started it."""
        if self.server is None:
            return error
        if self.server.monitor.complaint is not None:  # the monitor killed it, hence the failed request
            return self.server.fail(self.server.monitor.complaint)
        if error.kind == "silent":
            return self.server.fail_silent(self.api.timeout_s)
        if error.kind == "unreachable":
            return self.server.fail_disconnected(str(error))
        return self.server.fail_wrong(error.kind, f"{error} (at {self.server.step})")

    def identify(self) -> None:
        """Asks which model is served and how long its context is."""
        with self.step("the list of models"):
            name, context = self.api.find_model()
        self.api = replace(self.api, model=name)
        self.max_context = context or DEFAULT_CONTEXT

    def find_imports(self) -> ServerImports:
        """Asks the server's Python once what it imports; empty if the lab did not start it."""
        if self._imports is None:
            rules = load_rules(self.kind)
            names = MODULES if rules is None else (*rules.packages, *rules.optional_packages)
            self._imports = find_imports(self.server.place, names) if self.server is not None else ServerImports()
        return self._imports

    def read_ledger(self) -> ServerLedger | None:
        """Returns what ran, or None if the server has no ledger; waits while it still reads machine code."""
        last, least, deadline = None, math.inf, math.inf
        while (ledger := self._ask_ledger()) is not None:
            last = ledger
            if ledger.num_unread < least:
                least, deadline = ledger.num_unread, time.monotonic() + PROOFS_S
            if not ledger.num_unread or time.monotonic() > deadline:
                break
            self.on_progress(f"the machine code of {ledger.num_unread} kernels is being read")
            time.sleep(PROOFS_POLL_S)
        return last

    def _ask_ledger(self) -> ServerLedger | None:
        try:
            ledger = parse_ledger(self.api.get("/ledger"))
        except RequestFailed:
            return None
        except UserError as error:
            raise RequestFailed("garbage", f"/ledger: {error}") from error
        if self.server is not None and ledger is not None:
            self.server.ledger = to_json(ledger.ran)
        return ledger

    def footprint(self) -> Footprint | None:
        """Returns the memory of all its processes; None if they cannot be seen."""
        processes = [] if self.server is None else self.server.processes.find_living()
        return Footprint.of(processes) if processes else None


def is_refusal(error: RequestFailed) -> bool:
    """Returns True if a healthy server lacks what was asked for: a path, a field or a part of the answer."""
    return error.kind == "garbage" or (error.status is not None and (error.status < 500 or error.status == 501))


def are_finite(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)
