"""Signs of life of a step that takes long: kernels that are compiled, ops that are called; knows no message."""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import threading
from collections.abc import Callable

from firesteel.kernels.ledger import Ledger

PULSE_S = 1.0


def beat_at_compiles(beat: Callable[[], None]) -> None:
    """At each kernel that Triton compiles or finds compiled, at its first use in this process."""
    from triton import knobs

    knobs.compilation.listener = lambda **facts: beat()


def beat_at_calls(ledger: Ledger, beat: Callable[[], None], *, every_s: float = PULSE_S) -> Callable[[], None]:
    """Now and then, if ops were called meanwhile; a CPU may be at one step for minutes. Returns what ends it."""
    ended = threading.Event()
    threading.Thread(target=_watch_calls, args=(ledger, beat, ended, every_s), daemon=True).start()
    return ended.set


def _watch_calls(ledger: Ledger, beat: Callable[[], None], ended: threading.Event, every_s: float) -> None:
    seen = _count_calls(ledger)
    while not ended.wait(every_s):
        calls = _count_calls(ledger)
        if calls != seen:
            beat()
        seen = calls


def _count_calls(ledger: Ledger) -> int:
    return sum(entry.calls for entry in list(ledger.entries.values()))
