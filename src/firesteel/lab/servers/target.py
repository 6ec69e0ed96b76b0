"""The server under test: its API, its processes where the lab started it, its limits; judges nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.memory.footprint import Footprint
from firesteel.lab.servers.supervisor import Supervised

DEFAULT_CONTEXT = 4096  # of a server that does not say
PROOFS_S = 60.0  # for a server to read the machine code of one kernel more
PROOFS_POLL_S = 0.5


@dataclass(slots=True, kw_only=True)
class Target:
    api: Api
    kind: str  # whose rules it falls under: one of engines.KINDS, or "other"
    folder: Path
    model: str  # as the server was told; of one that ran already, as it says
    server: Supervised | None = None  # None where it ran already
    max_context: int = DEFAULT_CONTEXT
    tell: Callable[[str], None] = field(default=lambda words: None)  # progress in words

    @contextmanager
    def step(self, words: str) -> Iterator[None]:
        """What is asked inside, for the one who watches and for a diagnosis.

        A request that failed becomes the server's failure where it hangs or is gone.
        """
        self.tell(words)
        if self.server is not None:
            self.server.step = words
            self.server.check()
        try:
            yield
        except RequestFailed as error:
            raise self._failure(error) from error

    def _failure(self, error: RequestFailed) -> Exception:
        """Diagnosed with the server's log, which must be ours."""
        if self.server is None:
            return error
        if self.server.vigil.complaint is not None:  # why it was ended, and so broke off
            return self.server.fail(self.server.vigil.complaint)
        if error.kind == "silent":
            return self.server.fail_silent(self.api.timeout_s)
        if error.kind == "unreachable":
            return self.server.fail_broken(str(error))
        return self.server.fail_wrong(error.kind, f"{error} (at {self.server.step})")

    def greet(self) -> None:
        """Asks which model is served and how much it takes."""
        with self.step("the list of models"):
            name, context = self.api.find_model()
        self.api = replace(self.api, model=name)
        self.max_context = context or DEFAULT_CONTEXT

    def read_ledger(self) -> Mapping[str, Any] | None:
        """What ran, where the server says so; waits while it still reads the machine code of that."""
        last, least, deadline = None, math.inf, math.inf
        while (found := self._ask_ledger()) is not None:
            last, unread = found, count_unread(found)
            if unread < least:
                least, deadline = unread, time.monotonic() + PROOFS_S
            if not unread or time.monotonic() > deadline:
                break
            self.tell(f"machine code of {unread} kernels is being read")
            time.sleep(PROOFS_POLL_S)
        return last

    def _ask_ledger(self) -> dict[str, Any] | None:
        try:
            found = self.api.get("/ledger")
        except RequestFailed:
            return None
        if not isinstance(found, dict) or not isinstance(found.get("ran"), list):
            return None
        if self.server is not None:
            self.server.ledger = found["ran"]
        return found

    def footprint(self) -> Footprint | None:
        """Of all its processes; None of one that the lab did not start."""
        return None if self.server is None else Footprint.of(self.server.family.living())


def is_refusal(error: RequestFailed) -> bool:
    """Of a server that is well but does not offer what was asked: no such path, field or part of the answer."""
    return error.kind == "garbage" or (error.status is not None and (error.status < 500 or error.status == 501))


def are_finite(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)


def list_artefacts(ledger: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The machine code that ran; servers of before it was told of have none."""
    return [code for row in ledger["ran"] for code in row.get("artefacts") or ()]


def count_unread(ledger: Mapping[str, Any]) -> int:
    return sum(code["verdict"] is None for code in list_artefacts(ledger))
