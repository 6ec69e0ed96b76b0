"""Resolves settings from flags, environment, file and defaults: checks each value and records its origin."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from firesteel.config.checks import Check
from firesteel.config.environment import PLUGIN_VARIABLE, PREFIX, current
from firesteel.config.presets import AS_SHIPPED, AUTO, find_preset_values
from firesteel.config.removed import REMOVED, RemovedSettingWarning, variable_of
from firesteel.config.sections import Config
from firesteel.errors import UserError

FILE_VARIABLE, FILE_FLAG = "FIRESTEEL_CONFIG", "config"
TYPE_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "on or off"}


class ConfigError(UserError):
    """An unknown setting, or a value that a setting does not accept."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A declared setting: `section.name` in Config, `name` in files, `--name` as a flag."""

    section: str
    name: str
    type: type
    default: Any
    help: str
    env: str
    check: Check | None
    off_flag: str
    repeats: bool
    is_common: bool


@dataclass(frozen=True, slots=True)
class Settings:
    """A resolved Config with the origin of each setting: flag, environment, file, preset or default."""

    config: Config
    origins: Mapping[str, str]


def all_settings() -> dict[str, Setting]:
    declared_settings: dict[str, Setting] = {}
    for section, section_type in get_type_hints(Config).items():
        hints = get_type_hints(section_type)
        for declared in dataclasses.fields(section_type):
            meta = declared.metadata
            declared_settings[declared.name] = Setting(
                section,
                declared.name,
                hints[declared.name],
                declared.default,
                meta["help"],
                meta["env"],
                meta["check"],
                meta["off_flag"],
                meta["repeats"],
                meta["is_common"],
            )
    return declared_settings


def resolve(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    auto_preset: str = AS_SHIPPED,
) -> Settings:
    """Returns settings by precedence flag > environment > file > preset > default; a flag of None was not given.

    `auto_preset` is the set of defaults that the preset `auto` stands for. Removed settings are dropped with a
    warning. The flag `config` names the file; without it `file` or the variable FIRESTEEL_CONFIG does.
    """
    environ = current(environ)
    known = all_settings()
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    file = given.pop(FILE_FLAG, None) or file or environ.get(FILE_VARIABLE)
    given = drop_removed(given, REMOVED, "setting")
    reject_unknown(given, known, "setting")
    ours = {name: text for name, text in environ.items() if name.startswith(PREFIX)}
    ours = drop_removed(ours, {variable_of(name): reason for name, reason in REMOVED.items()}, "variable")
    variables = [*(setting.env for setting in known.values()), FILE_VARIABLE, PLUGIN_VARIABLE]
    reject_unknown(ours, variables, "variable")
    from_file = read_file(Path(file), known) if file else {}

    def find(declared: Setting) -> tuple[Any, str]:
        """Returns the value that the user gave, or the default, and where it is from."""
        if declared.name in given:
            value, origin = given[declared.name], "flag"
        elif declared.env in environ:
            value, origin = parse(environ[declared.env], declared), f"environment {declared.env}"
        elif declared.name in from_file:
            value, origin = from_file[declared.name], f"file {file}"
        else:
            value, origin = declared.default, "default"
        return checked(value, declared, origin), origin

    asked, _ = find(known["preset"])
    preset = auto_preset if asked == AUTO else asked
    of_preset = find_preset_values(preset)
    values: dict[str, dict[str, Any]] = {}
    origins = {}
    for name, declared in known.items():
        value, origin = find(declared)
        if origin == "default" and name in of_preset:
            value, origin = checked(of_preset[name], declared, "preset"), f"preset {preset}"
        values.setdefault(declared.section, {})[name] = value
        origins[name] = origin
    sections = {section: kind(**values[section]) for section, kind in get_type_hints(Config).items()}
    return Settings(Config(**sections), origins)


def read_file(path: Path, known: Mapping[str, Setting]) -> dict[str, Any]:
    import tomllib

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    content = drop_removed(content, REMOVED, f"key in {path}:")
    reject_unknown(content, known, f"key in {path}:")
    return content


def drop_removed(given: Mapping[str, Any], removed: Mapping[str, str], what: str) -> dict[str, Any]:
    """Returns what was given without removed settings, and warns of each of those."""
    for name in given.keys() & removed.keys():
        warnings.warn(
            f"{what} {name} is ignored: it was removed, and the next version refuses it; {removed[name]}",
            RemovedSettingWarning,
            stacklevel=2,
        )
    return {name: value for name, value in given.items() if name not in removed}


def reject_unknown(names: Iterable[str], known: Iterable[str], what: str) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0)
            raise ConfigError(f"unknown {what} {name}; did you mean {near[0]}?")


def parse(text: str, declared: Setting) -> Any:
    if declared.type is bool:
        return parse_switch(declared.env, text)
    try:
        return declared.type(text)
    except ValueError as error:
        raise ConfigError(f"{declared.env}={text!r}: must be {TYPE_NAMES[declared.type]}") from error


def parse_switch(variable: str, text: str) -> bool:
    truth = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
    if text.lower() not in truth:
        raise ConfigError(f"{variable}={text!r}: must be on or off")
    return truth[text.lower()]


def checked(value: Any, declared: Setting, origin: str) -> Any:
    if declared.type is float and type(value) is int:
        value = float(value)
    if type(value) is not declared.type:
        raise ConfigError(f"{declared.name} = {value!r} ({origin}): must be {TYPE_NAMES[declared.type]}")
    if declared.check and (complaint := declared.check(value)):
        raise ConfigError(f"{declared.name} = {value!r} ({origin}): {complaint}")
    return value
