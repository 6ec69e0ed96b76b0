"""Gates, the variables of a matrix: parsing, checks, and the flags and environment that set them.

A gate is a setting of firesteel, a flag of another engine as its command line has it, `env:NAME` for a variable of
the environment, or `configuration` for the named configurations of a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from firesteel.config import all_settings, hide_secrets, is_secret
from firesteel.errors import UserError
from firesteel.lab.matrix.result import CONFIGURATION
from firesteel.lab.matrix.variables import ENV, check_variable

ON, OFF = "on", "off"  # of a setting of firesteel
WITH, WITHOUT = "with", "without"  # a flag alone, and neither flag nor variable
OWN_ENGINE = "firesteel"
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
HOW_TO_NAME = "name at least one gate, such as --gates kv_dtype=auto,fp8 --gates prefix_caching"


def parse_gates(words: Sequence[str], *, engine: str = OWN_ENGINE) -> dict[str, tuple[str, ...]]:
    """Parses words such as "kv_dtype=auto,fp8"; a name alone means with and without it.

    A word that repeats the name of an earlier one adds its values.
    """
    gates: dict[str, tuple[str, ...]] = {}
    for word in words:
        written, equals, text = word.partition("=")
        name = parse_name(written.strip(), engine)
        if not equals and name.startswith(ENV):
            raise UserError(f"--gates {word}: needs values, such as {name}=1,{WITHOUT}; {WITHOUT} leaves it out")
        alone = (ON, OFF) if engine == OWN_ENGINE else (WITH, WITHOUT)
        gates[name] = gates.get(name, ()) + (split_values(word, text) if equals else alone)
    check_gates(gates, engine=engine)
    return gates


def parse_name(written: str, engine: str) -> str:
    """Returns the name of a gate; settings of firesteel may be written as flags, and flags without their dashes."""
    if not written.strip("- "):
        raise UserError(f"--gates {written}=...: a gate needs a name, such as kv_dtype=auto,fp8")
    if written.startswith(ENV) or written == CONFIGURATION:
        return written
    if VARIABLE.fullmatch(written):
        raise UserError(
            f"--gates {written}: is a variable of the environment meant? Write {ENV}{written}=VALUE,VALUE"
        )
    if engine == OWN_ENGINE:
        return written.lstrip("-").replace("-", "_")
    return written.removeprefix("--")


def split_values(word: str, text: str) -> tuple[str, ...]:
    """Splits values at commas. JSON that begins with a bracket, and a value in quotes, are one value."""
    text = text.strip()
    if text[:1] in ("{", "["):
        try:
            json.loads(text)
        except ValueError as error:
            cure = "give each value its own --gates NAME=VALUE, and put what is not JSON in quotes"
            raise UserError(
                f"--gates {word}: a value that begins with {text[0]} must be JSON ({error}): {cure}"
            ) from error
        return (text,)
    if len(text) > 1 and text[0] in "\"'" and text.find(text[0], 1) == len(text) - 1:
        return (text[1:-1],)
    values = tuple(value.strip() for value in text.split(","))
    if unclear := [value for value in values if not value or value[0] in "\"'{["]:
        cure = "give each value that holds a comma or a quote its own --gates NAME=VALUE, in quotes"
        raise UserError(f"--gates {word}: {unclear[0] or 'an empty text'} is not a value: {cure}")
    return values


def check_gates(gates: Mapping[str, Sequence[str]], *, engine: str) -> None:
    """Raises for a gate that cannot be set, and for values that do not differ."""
    for name, values in gates.items():
        if not values or len(set(values)) < len(values):
            raise UserError(f"the gate {name} has the values {', '.join(values)}: it needs values that differ")
        if is_secret(name) or hide_secrets(values) != list(values):
            raise UserError(
                f"the gate {name} would be a secret in names of files: set it for the whole matrix instead"
            )
        if name.startswith(ENV):
            for value in set(values) - {WITHOUT}:
                check_variable(name.removeprefix(ENV), value)
        elif engine == OWN_ENGINE and name != CONFIGURATION:
            check_setting(name, values)


def check_setting(name: str, values: Sequence[str]) -> None:
    """Raises unless the gate is a setting of firesteel and its values are valid for an on/off setting."""
    known = all_settings()
    if name not in known:
        raise UserError(f"there is no gate {name!r}; gates are the settings of `firesteel env`: {', '.join(known)}")
    if known[name].type is bool and (wrong := set(values) - {ON, OFF}):
        raise UserError(f"{name} takes the values {ON} and {OFF}, not {', '.join(sorted(wrong))}")


def make_flags(chosen: Mapping[str, str], *, engine: str = OWN_ENGINE) -> list[str]:
    """Returns the command-line flags of a cell's gates."""
    flags = []
    for name, value in chosen.items():
        if name.startswith(ENV) or name == CONFIGURATION:
            continue
        if engine == OWN_ENGINE:
            flags += make_own_flag(name, value)
        elif value != WITHOUT:
            flags += [name if name.startswith("-") else f"--{name}", *([] if value == WITH else [value])]
    return flags


def make_own_flag(name: str, value: str) -> list[str]:
    words = name.replace("_", "-")
    if all_settings()[name].type is not bool:
        return [f"--{words}", value]
    return [f"--{words}" if value == ON else f"--no-{words}"]


def make_environment(chosen: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that a cell's gates set."""
    variables = {name.removeprefix(ENV): value for name, value in chosen.items() if name.startswith(ENV)}
    return {name: value for name, value in variables.items() if value != WITHOUT}


def list_removed(chosen: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the variables that a cell must not inherit."""
    return tuple(
        name.removeprefix(ENV) for name, value in chosen.items() if name.startswith(ENV) and value == WITHOUT
    )


def name_choice(chosen: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in chosen.items())
