"""The exit codes of the program: one table for all verbs.

A program that is ended by a signal has 128 and the signal's number: 130 after Ctrl-C, 143 after SIGTERM.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    PASSED = 0  # all that was asked for was done and judged, and nothing failed
    FAILED = 1  # something was judged and failed, or could not be finished
    USAGE = 2  # wrong flag, setting, file or model: nothing was run
    UNPROVEN = 3  # nothing failed, but nothing or not all could be judged or measured
    INTERRUPTED = 130
