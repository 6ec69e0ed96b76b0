"""Verdicts on the machine code that an engine launched; read aside, for disassembling takes its time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from threading import Thread

from firesteel.engine.process.worker import Aside
from firesteel.kernels.ledger import Launch, Ledger
from firesteel.kernels.op.requirement import UNREAD
from firesteel.kernels.op.verdict import judge_compiled

_log = logging.getLogger(__name__)
READERS = 4  # beside each other: most of the time of one is a disassembler's


class Proofs:
    """Of a kernel in an artefact, which may hold several: the same machine code is read once."""

    def __init__(self) -> None:
        self._verdicts: dict[tuple[str, str], str] = {}
        self._aside = Aside()
        self._is_reading = False

    def find(self, launch: Launch) -> str | None:
        """None before it was read."""
        return self._verdicts.get(_key(launch))

    def read(self, ledger: Ledger, then: Callable[[], object]) -> None:
        """Comes back at once; another thread calls `then` when all that is new in the ledger was read.

        Where nothing is new, or some of it is being read, nothing is done."""
        new = {
            key: launch for entry in ledger.entries.values() for launch in entry.launches
            if launch.compiled is not None and (key := _key(launch)) not in self._verdicts
        }  # fmt: skip
        if new and not self._is_reading:
            self._is_reading = True
            self._aside.do(lambda: self._read(list(new.values())), then)

    def _read(self, launches: list[Launch]) -> None:
        """By threads that do not keep the process from ending."""
        todo = iter(launches)
        readers = [Thread(target=self._read_some, args=(todo,), daemon=True) for _ in launches[:READERS]]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        self._is_reading = False

    def _read_some(self, todo: Iterator[Launch]) -> None:
        """Those that no other reader took."""
        for launch in todo:
            self._verdicts[_key(launch)] = judge_or_tell(launch)


def _key(launch: Launch) -> tuple[str, str]:
    return launch.artefact, launch.kernel


def judge_or_tell(launch: Launch) -> str:
    try:
        return judge_compiled(launch.compiled)
    except Exception as error:  # whatever it is: kernels run without their proof
        _log.warning("machine code of %s %s could not be read: %s", launch.kernel, launch.artefact[:8], error)
        return UNREAD
