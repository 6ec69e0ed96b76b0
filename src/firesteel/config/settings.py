"""Knobs set by flag, environment, file or default, checked, with their origins; knows no knob by name."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from firesteel.config.checks import Check
from firesteel.config.environment import PREFIX, current
from firesteel.config.sections import Config
from firesteel.errors import UserError

FILE_VARIABLE = "FIRESTEEL_CONFIG"


class ConfigError(UserError):
    """A knob that does not exist, or a value it cannot take."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One declared field: `section.name` in Config, `name` in files, `--name` as a flag."""

    section: str
    name: str
    type: type
    default: Any
    help: str
    env: str
    check: Check | None
    off_flag: str


@dataclass(frozen=True, slots=True)
class Settings:
    """A resolved Config and, for each knob, which of flag, environment, file or default set it."""

    config: Config
    origins: Mapping[str, str]


def knobs() -> dict[str, Knob]:
    found: dict[str, Knob] = {}
    for section, section_type in get_type_hints(Config).items():
        hints = get_type_hints(section_type)
        for declared in dataclasses.fields(section_type):
            meta = declared.metadata
            found[declared.name] = Knob(
                section,
                declared.name,
                hints[declared.name],
                declared.default,
                meta["help"],
                meta["env"],
                meta["check"],
                meta["off_flag"],
            )
    return found


def resolve(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> Settings:
    """Settings by precedence flag > environment > file > default; a flag of None was not given."""
    environ = current(environ)
    known = knobs()
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    reject_unknown(given, known, "setting")
    variables = {knob.env: knob.name for knob in known.values()}
    reject_unknown([name for name in environ if name.startswith(PREFIX)], [*variables, FILE_VARIABLE], "variable")
    file = file or environ.get(FILE_VARIABLE)
    from_file = read_file(Path(file), known) if file else {}

    values: dict[str, dict[str, Any]] = {}
    origins = {}
    for name, declared in known.items():
        if name in given:
            value, origin = given[name], "flag"
        elif declared.env in environ:
            value, origin = parse(environ[declared.env], declared), f"environment {declared.env}"
        elif name in from_file:
            value, origin = from_file[name], f"file {file}"
        else:
            value, origin = declared.default, "default"
        values.setdefault(declared.section, {})[name] = checked(value, declared, origin)
        origins[name] = origin
    sections = {section: kind(**values[section]) for section, kind in get_type_hints(Config).items()}
    return Settings(Config(**sections), origins)


def read_file(path: Path, known: Mapping[str, Knob]) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    reject_unknown(content, known, f"key in {path}:")
    return content


def reject_unknown(names: Mapping[str, Any] | list[str], known: Mapping[str, Any] | list[str], what: str) -> None:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, list(known), n=1, cutoff=0)
            raise ConfigError(f"unknown {what} {name}; did you mean {near[0]}?")


def parse(text: str, declared: Knob) -> Any:
    if declared.type is bool:
        truth = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
        if text.lower() not in truth:
            raise ConfigError(f"{declared.env}={text!r}: wants on or off")
        return truth[text.lower()]
    try:
        return declared.type(text)
    except ValueError as error:
        raise ConfigError(f"{declared.env}={text!r}: wants {declared.type.__name__}") from error


def checked(value: Any, declared: Knob, origin: str) -> Any:
    if declared.type is float and type(value) is int:
        value = float(value)
    if type(value) is not declared.type:
        raise ConfigError(f"{declared.name} = {value!r} ({origin}): wants {declared.type.__name__}")
    if declared.check and (complaint := declared.check(value)):
        raise ConfigError(f"{declared.name} = {value!r} ({origin}): {complaint}")
    return value
