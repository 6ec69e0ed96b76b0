"""Entry point of the program, and the flags that are made from the settings."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from firesteel.config import REMOVED, RemovedSettingWarning, Setting, all_settings, hide_in_text
from firesteel.errors import EngineDied, UserError
from firesteel.exit_code import ExitCode
from firesteel.untrusted.printable import escape_line

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Runs the program: a UserError or a dead engine is one line, any other error is a bug with its traceback."""
    warnings.showwarning = show_warning
    try:
        app()
    except UserError as error:
        show_error(error)
        sys.exit(ExitCode.USAGE)
    except EngineDied as error:
        show_error(error)
        sys.exit(ExitCode.FAILED)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


def show_error(error: object) -> None:
    """Prints an error as one line on stderr."""
    _print_line("error: ", "bold red", error)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Prints a removed setting as one line on stderr, and any other warning as Python does."""
    if issubclass(category, RemovedSettingWarning):
        _print_line("warning: ", "bold yellow", message)
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=file or sys.stderr)


def _print_line(label: str, style: str, message: object) -> None:
    line = escape_line(hide_in_text(" ".join(str(message).splitlines())))
    text = Text.assemble((label, style), line)
    Console(stderr=True).print(text, soft_wrap=True)


def with_settings(command: Callable[..., None], *, is_server: bool = False) -> Callable[..., None]:
    """Gives a command a flag per setting, the server's only if `is_server`; those given reach it as `settings`."""
    offered = [setting for setting in all_settings().values() if is_server or setting.section != "server"]
    flags = {setting.name: _flag(setting) for setting in offered}
    return with_options(command, "settings", flags | {name: _removed_flag(name) for name in REMOVED})


def with_options(command: Callable[..., None], parameter: str, options: Mapping[str, Any]) -> Callable[..., None]:
    """Gives a command options, annotations by name; those given reach it as a dict in its `parameter`."""
    hints = inspect.get_annotations(command, eval_str=True)
    own = [
        declared.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[declared.name])
        for declared in inspect.signature(command).parameters.values()
        if declared.name != parameter
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in options.items()
    ]

    def run(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in options}
        present = {name: value for name, value in given.items() if value is not None and value != []}
        repeated = {name: "\n".join(value) for name, value in present.items() if isinstance(value, list)}
        command(**arguments, **{parameter: present | repeated})

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {declared.name: declared.annotation for declared in (*own, *added)}
    return run


def _flag(setting: Setting) -> Any:
    name = f"--{setting.name.replace('_', '-')}"
    names = [f"{name}/--no-{name[2:]}"] if setting.type is bool else [name]
    names += [f" /{setting.off_flag}"] if setting.off_flag else []
    default = "none" if setting.default == "" else setting.default
    text = escape(f"{setting.help} (default: {default}; {setting.env})")  # rich takes square brackets for markup
    kind = list[str] if setting.repeats else setting.type
    return Annotated[kind | None, typer.Option(*names, help=text, rich_help_panel=f"{setting.section} settings")]


def _removed_flag(name: str) -> Any:
    """Accepts any value: resolving the settings drops it with a warning."""
    return Annotated[str | None, typer.Option(f"--{name.replace('_', '-')}", hidden=True)]
