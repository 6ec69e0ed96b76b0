"""Variables of the environment that a matrix sets: their names and values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from firesteel.config import PREFIX, all_settings, resolve
from firesteel.errors import UserError

ENV = "env:"  # before the name of a variable, as a gate
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_variable(name: str, value: str) -> None:
    """Raises for a name that cannot be set, and for variables of firesteel that it would refuse."""
    if not NAME.fullmatch(name):
        raise UserError(
            f"{ENV}{name}: a variable's name has letters, digits and underscores, such as {ENV}VLLM_USE_V2"
        )
    if "\0" in value:
        raise UserError(f"{ENV}{name}: a variable cannot hold a NUL character")
    if name.startswith(PREFIX):
        resolve(environ={name: value})


def check_beaten(flags: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raises if a flag of firesteel beats a variable of the same setting, so that the variable changes nothing."""
    given = {word.partition("=")[0] for word in flags}
    for declared in all_settings().values():
        words = declared.name.replace("_", "-")
        both = given & {f"--{words}", f"--no-{words}"}
        if declared.env in environment and both:
            raise UserError(
                f"{declared.env} would change nothing: the flag {min(both)} beats it; leave one of them out"
            )
