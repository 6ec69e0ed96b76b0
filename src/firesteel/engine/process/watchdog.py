"""Notices that someone who is waited for has fallen silent; knows no process and no message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LONGEST_POLL_S = 1.0
POLLS = 20  # in the time allowed, where that is short


async def until_silent(count_heard: Callable[[], int], is_awaited: Callable[[], bool], limit_s: float) -> None:
    """Returns once nothing was heard for `limit_s` while something was awaited; never where that is 0.

    Only time in which this loop ran is counted: where the whole program stood still, so did the listening.
    """
    poll_s = min(LONGEST_POLL_S, limit_s / POLLS) or LONGEST_POLL_S
    silent_s, heard = 0.0, count_heard()
    while not limit_s or silent_s < limit_s:
        await asyncio.sleep(poll_s)
        if is_awaited() and count_heard() == heard:
            silent_s += poll_s
        else:
            silent_s, heard = 0.0, count_heard()
