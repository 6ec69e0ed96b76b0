"""Signs of life: the engine's process sends them in long steps, its parent notices when they stop."""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from firesteel.kernels.ledger import Ledger

BEAT_S = 1.0
MAX_POLL_S = 1.0
POLLS = 20  # per time limit, if that is short


async def until_silent(count_messages: Callable[[], int], is_awaited: Callable[[], bool], limit_s: float) -> None:
    """Returns after `limit_s` without a message while something was awaited; never returns if that is 0.

    Only time in which this event loop ran is counted: if the whole program stood still, no message was read either.
    """
    poll_s = min(MAX_POLL_S, limit_s / POLLS) or MAX_POLL_S
    silent_s, num_messages = 0.0, count_messages()
    while not limit_s or silent_s < limit_s:
        await asyncio.sleep(poll_s)
        if is_awaited() and count_messages() == num_messages:
            silent_s += poll_s
        else:
            silent_s, num_messages = 0.0, count_messages()


def beat_at_compiles(beat: Callable[[], None]) -> None:
    """Calls `beat` for each kernel that Triton compiles or loads from its cache, at the kernel's first use."""
    from triton import knobs

    knobs.compilation.listener = lambda **facts: beat()


def beat_at_calls(ledger: Ledger, beat: Callable[[], None], *, every_s: float = BEAT_S) -> Callable[[], None]:
    """Calls `beat` periodically if ops were called since: one step may take minutes on a CPU.

    Returns the function that ends it.
    """
    ended = threading.Event()
    threading.Thread(target=_watch_calls, args=(ledger, beat, ended, every_s), daemon=True).start()
    return ended.set


def _watch_calls(ledger: Ledger, beat: Callable[[], None], ended: threading.Event, every_s: float) -> None:
    last_calls = _count_calls(ledger)
    while not ended.wait(every_s):
        calls = _count_calls(ledger)
        if calls != last_calls:
            beat()
        last_calls = calls


def _count_calls(ledger: Ledger) -> int:
    return sum(entry.calls for entry in list(ledger.entries.values()))
