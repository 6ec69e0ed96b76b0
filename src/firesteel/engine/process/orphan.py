"""Binds the life of a process to that of its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent ends, even while this process is stopped (SIGSTOP).

    The kernel means the thread that started this process: it must live as long as the parent does. A parent that
    ended before this call is noticed by its closed socket.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
