"""Verdicts on the machine code that an engine launched, read in background threads: disassembling takes time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from threading import Thread

from firesteel.engine.process.worker import BackgroundWorker
from firesteel.kernels.ledger import Launch, Ledger
from firesteel.kernels.op.requirement import UNREAD
from firesteel.kernels.op.verdict import judge_compiled

_log = logging.getLogger(__name__)
READERS = 4  # threads: most of a reader's time is spent in a disassembler


class Verdicts:
    """Verdicts by artefact and kernel, as an artefact may hold several kernels. Each is read once."""

    def __init__(self) -> None:
        self._verdicts: dict[tuple[str, str], str] = {}
        self._worker = BackgroundWorker()
        self._is_reading = False

    def find(self, launch: Launch) -> str | None:
        """Returns None if the machine code was not read yet."""
        return self._verdicts.get(_key(launch))

    def read(self, ledger: Ledger, then: Callable[[], object]) -> None:
        """Returns at once; another thread calls `then` when everything new in the ledger was read.

        Does nothing if nothing is new or a read is in progress.
        """
        new = {
            key: launch
            for entry in ledger.entries.values()
            for launch in entry.launches
            if launch.compiled is not None and (key := _key(launch)) not in self._verdicts
        }
        if new and not self._is_reading:
            self._is_reading = True
            self._worker.do(lambda: self._read(list(new.values())), lambda _: then())

    def _read(self, launches: list[Launch]) -> None:
        """Reads with several daemon threads."""
        queue = iter(launches)
        readers = [Thread(target=self._read_some, args=(queue,), daemon=True) for _ in launches[:READERS]]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        self._is_reading = False

    def _read_some(self, queue: Iterator[Launch]) -> None:
        """Reads the launches that no other reader took from the shared queue."""
        for launch in queue:
            self._verdicts[_key(launch)] = judge_or_warn(launch)


def _key(launch: Launch) -> tuple[str, str]:
    return launch.artefact, launch.kernel


def judge_or_warn(launch: Launch) -> str:
    try:
        return judge_compiled(launch.compiled)
    except Exception as error:  # of any kind: kernels run without their verdict
        _log.warning("machine code of %s %s could not be read: %s", launch.kernel, launch.artefact[:8], error)
        return UNREAD
