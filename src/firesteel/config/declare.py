"""Declares one setting: its default, help, environment variable and check."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from firesteel.config.checks import Check


def setting(
    default: Any,
    help: str,
    *,
    env: str,
    check: Check | None = None,
    off_flag: str = "",
    repeats: bool = False,
    is_common: bool = False,
) -> Any:
    """Declares a setting. `off_flag` names a second flag that switches it off.

    The flag of a setting that `repeats` may be given several times; its value has one line per flag. `--help` shows
    settings that are common, `--help-all` the others too.
    """
    return field(
        default=default,
        metadata={
            "help": help,
            "env": env,
            "check": check,
            "off_flag": off_flag,
            "repeats": repeats,
            "is_common": is_common,
        },
    )
