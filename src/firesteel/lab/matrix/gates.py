"""Gates, the variables of a matrix: parsing, checks, and the flags that set them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firesteel.config import all_settings
from firesteel.errors import UserError

ON, OFF = "on", "off"
OWN_ENGINE = "firesteel"


def parse_gates(words: Sequence[str], *, engine: str = OWN_ENGINE) -> dict[str, tuple[str, ...]]:
    """Parses "kv_dtype=auto,fp8"; a name alone means on and off."""
    gates: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        gates[name] = tuple(value.strip() for value in values.split(",")) if equals else (ON, OFF)
        if not all(gates[name]) or len(set(gates[name])) < len(gates[name]):
            raise UserError(f"--gates {word}: needs values that differ, such as kv_dtype=auto,fp8")
        if engine == OWN_ENGINE:
            check_gate(name, gates[name])
    if not gates:
        raise UserError("name at least one gate, such as --gates kv_dtype=auto,fp8 --gates prefix_caching")
    return gates


def check_gate(name: str, values: Sequence[str]) -> None:
    """Raises unless the gate is a setting of firesteel and its values are valid for an on/off setting."""
    known = all_settings()
    if name not in known:
        raise UserError(f"there is no gate {name!r}; gates are the settings of `firesteel env`: {', '.join(known)}")
    if known[name].type is bool and (wrong := set(values) - {ON, OFF}):
        raise UserError(f"{name} takes the values {ON} and {OFF}, not {', '.join(sorted(wrong))}")


def make_flags(chosen: Mapping[str, str], *, engine: str = OWN_ENGINE) -> list[str]:
    """Returns command-line flags: off is --no-NAME for firesteel, and no flag for other engines."""
    flags = []
    for name, value in chosen.items():
        flag = f"--{name.replace('_', '-')}"
        is_on_off = all_settings()[name].type is bool if engine == OWN_ENGINE else value in (ON, OFF)
        if not is_on_off:
            flags += [flag, value]
        elif value == ON:
            flags.append(flag)
        elif engine == OWN_ENGINE:
            flags.append(f"--no-{name.replace('_', '-')}")
    return flags


def name_choice(chosen: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in chosen.items())
