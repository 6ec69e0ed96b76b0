"""The interface of an engine that the server needs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from firesteel.engine.process.messages import Ready
from firesteel.engine.process.waiters import OutputStream
from firesteel.engine.statistics import Statistics
from firesteel.types import Request


class ServedEngine(Protocol):
    """An engine behind a server; `EngineClient` implements it."""

    facts: Ready
    num_deaths: int

    @property
    def is_ready(self) -> bool: ...

    @property
    def failure(self) -> str | None: ...

    @property
    def ledger(self) -> list[dict[str, Any]]: ...

    def open(self, requests: Sequence[Request]) -> AbstractAsyncContextManager[OutputStream]: ...

    async def statistics(self) -> Statistics: ...

    async def refresh_ledger(self) -> None: ...
