"""The file of a matrix: named configurations, gates, and what every cell is started with."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.lab.matrix.gates import HOW_TO_NAME, check_gates, parse_gates, parse_name
from firesteel.lab.matrix.result import CONFIGURATION, Configuration
from firesteel.lab.matrix.variables import check_variable

OF_FILE = ("flags", "environment", "gates", CONFIGURATION)
OF_CONFIGURATION = ("name", "flags", "environment", "expect", "path")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatesFile:
    flags: tuple[str, ...] = ()  # of every cell
    environment: Mapping[str, str] = field(default_factory=dict)  # of every cell
    gates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    configurations: tuple[Configuration, ...] = ()

    def list_chosen(self, gates: Mapping[str, Sequence[str]]) -> tuple[Configuration, ...]:
        """Returns the configurations that the gates name."""
        return tuple(known for known in self.configurations if known.name in gates.get(CONFIGURATION, ()))


def read_gates_file(path: Path, *, engine: str) -> GatesFile:
    """Reads and checks a file; errors name the line or the key."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--gates-file {path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # TOML or UTF-8
        raise UserError(f"--gates-file {path}: is not valid TOML: {error}") from error
    try:
        return parse_gates_file(content, engine=engine)
    except UserError as error:
        raise UserError(f"--gates-file {path}: {error}") from error


def parse_gates_file(content: Mapping[str, Any], *, engine: str) -> GatesFile:
    check_keys(content, OF_FILE, "the file")
    gates = {
        parse_name(name, engine): texts(values, f"gates.{name}") for name, values in table(content, "gates").items()
    }
    if len(gates) < len(table(content, "gates")):
        raise UserError(f"gates: two names mean the same gate: {', '.join(content['gates'])}")
    if CONFIGURATION in gates:
        raise UserError(f"gates.{CONFIGURATION}: a configuration is a table [[{CONFIGURATION}]] with a name")
    check_gates(gates, engine=engine)
    found = content.get(CONFIGURATION, [])
    if not isinstance(found, list):
        raise UserError(f"{CONFIGURATION}: write [[{CONFIGURATION}]] with two brackets, once per configuration")
    file = GatesFile(
        flags=texts(content.get("flags", []), "flags"),
        environment=variables(content, "environment"),
        gates=gates,
        configurations=tuple(
            parse_configuration(entry, f"{CONFIGURATION} {at}") for at, entry in enumerate(found, 1)
        ),
    )
    names = [configuration.name for configuration in file.configurations]
    if len(set(names)) < len(names):
        raise UserError(f"two configurations have the same name: {', '.join(sorted(names))}")
    if not (file.configurations or file.gates):
        raise UserError(f"it has neither a [[{CONFIGURATION}]] nor [gates]")
    return file


def parse_configuration(content: Any, place: str) -> Configuration:
    if not isinstance(content, dict) or not isinstance(content.get("name"), str) or not content["name"].strip():
        raise UserError(f"{place}: needs a name")
    place = f"{place} ({content['name']})"
    check_keys(content, OF_CONFIGURATION, place)
    return Configuration(
        name=content["name"],
        flags=texts(content.get("flags", []), f"{place}: flags"),
        environment=variables(content, f"{place}: environment"),
        expect=text(content.get("expect", ""), f"{place}: expect"),
        path=text(content.get("path", ""), f"{place}: path"),
    )


def choose_gates(words: Sequence[str], file: GatesFile, *, engine: str) -> dict[str, tuple[str, ...]]:
    """Returns the gates of the file and of --gates, which replaces those of the same name.

    The configurations are a gate too; --gates configuration=NAME,NAME chooses some of them.
    """
    known = tuple(configuration.name for configuration in file.configurations)
    given = parse_gates(words, engine=engine)
    for name in given.get(CONFIGURATION, ()):
        if name not in known:
            raise UserError(f"--gates {CONFIGURATION}={name}: --gates-file has {', '.join(known) or 'none'}")
    gates = {CONFIGURATION: known} if known else {}
    gates |= {**file.gates, **given}
    if not gates:
        raise UserError(HOW_TO_NAME)
    return gates


def to_toml(
    environment: Mapping[str, str],
    gates: Mapping[str, Sequence[str]],
    configurations: Sequence[Configuration],
) -> str:
    """Returns a file as `read_gates_file` reads it. TOML's strings, lists of them and keys in quotes are JSON."""
    lines = ["[environment]", *_pairs(environment), "", "[gates]", *_pairs(gates)]
    for configuration in configurations:
        content = asdict(configuration)
        variables = content.pop("environment")
        lines += [
            "",
            f"[[{CONFIGURATION}]]",
            *_pairs(content),
            f"[{CONFIGURATION}.environment]",
            *_pairs(variables),
        ]
    return "\n".join(lines) + "\n"


def _pairs(content: Mapping[str, Any]) -> list[str]:
    return [f"{_quoted(name)} = {_quoted(value)}" for name, value in content.items()]


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def check_keys(content: Mapping[str, Any], known: Sequence[str], place: str) -> None:
    for name in content:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0)
            raise UserError(f"{place} has the unknown key {name!r}; did you mean {near[0]!r}?")


def table(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = content.get(name, {})
    if not isinstance(found, dict):
        raise UserError(f"{name} must be a table, not {found!r}")
    return found


def variables(content: Mapping[str, Any], place: str) -> dict[str, str]:
    """Returns the environment in a file or a configuration."""
    found = {name: text(value, f"{place}.{name}") for name, value in table(content, "environment").items()}
    for name, value in found.items():
        check_variable(name, value)
    return found


def texts(value: Any, place: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise UserError(f"{place} must be a list of texts in quotes, not {value!r}")
    return tuple(text(item, place) for item in value)


def text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise UserError(f'{place}: must be text in quotes, such as "{value}", not {value!r}')
    return value
