"""Entry point of the program, and the flags that are made from the settings."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TextIO

import typer
from typer import completion

from firesteel.cli.group import make_group
from firesteel.cli.help_page import FURTHER
from firesteel.config import (
    FILE_FLAG,
    FILE_VARIABLE,
    REMOVED,
    RemovedSettingWarning,
    Setting,
    all_settings,
    hide_in_text,
    wants_colour,
)
from firesteel.errors import EngineDied, UserError
from firesteel.exit_code import ExitCode
from firesteel.untrusted.printable import escape_line

COMMON = "Settings"  # panel of the settings that people use first
_FILE = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help='TOML file of settings such as kv_dtype = "fp8"; a flag, or a variable such as FIRESTEEL_KV_DTYPE, '
        f"wins (default: {FILE_VARIABLE})",
        rich_help_panel=COMMON,
    ),
]
app = make_group("")


completion.completion_init()  # type: ignore[attr-defined]
# registers the protocol between shells and this program


def show_version(is_wanted: bool) -> None:
    if is_wanted:
        from firesteel.version import find_version

        typer.echo(f"firesteel {find_version()}")
        raise typer.Exit


@app.callback()
def begin(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=show_version),
    ] = False,
    install_completion: Annotated[
        bool,
        typer.Option(
            "--install-completion",
            help="Install completions for the current shell.",
            is_eager=True,
            callback=completion.install_callback,
        ),
    ] = False,
    show_completion: Annotated[
        bool,
        typer.Option(
            "--show-completion",
            help="Show the script that --install-completion installs.",
            is_eager=True,
            callback=completion.show_callback,
        ),
    ] = False,
) -> None:
    """Serve gpt-oss from its MXFP4 weights on one GPU, and prove that its fast path is the one that ran.

    `firesteel VERB --help` shows the flags that people use first, and `firesteel VERB --help-all` every flag.
    """


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
    _print_line("error: ", "red", error)


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
        warn(message)
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=file or sys.stderr)


def warn(message: object) -> None:
    """Prints a warning as one line on stderr."""
    _print_line("warning: ", "yellow", message)


def _print_line(label: str, colour: str, message: object) -> None:
    line = escape_line(hide_in_text(" ".join(str(message).splitlines())))
    typer.echo(typer.style(label, fg=colour, bold=True) + line, err=True, color=None if wants_colour() else False)


def with_settings(command: Callable[..., None], *, is_server: bool = False) -> Callable[..., None]:
    """Gives a command --config and a flag per setting; those given reach it as `settings`.

    It gets the server's settings only if `is_server`.
    """
    offered = [setting for setting in all_settings().values() if is_server or setting.section != "server"]
    flags = {setting.name: _flag(setting) for setting in sorted(offered, key=lambda setting: not setting.is_common)}
    removed = {name: _removed_flag(name) for name in REMOVED}
    return with_options(command, "settings", {FILE_FLAG: _FILE} | flags | removed)


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
    text = f"{setting.help} (default: {default})"
    kind = list[str] if setting.repeats else setting.type
    panel = COMMON if setting.is_common else f"{FURTHER}settings: {setting.section}"
    complete = complete_model if setting.name == "model" else None
    return Annotated[kind | None, typer.Option(*names, help=text, rich_help_panel=panel, autocompletion=complete)]


def complete_model(incomplete: str) -> list[str]:
    """Returns the names of models that begin with `incomplete`, for completions by the shell."""
    from firesteel.hub.cache import list_repositories
    from firesteel.hub.names import BUILT_IN, SHORT_NAMES

    names = [BUILT_IN.name, *SHORT_NAMES, *list_repositories()]
    return [name for name in names if name.startswith(incomplete)]


def _removed_flag(name: str) -> Any:
    """Accepts any value: resolving the settings drops it with a warning."""
    return Annotated[str | None, typer.Option(f"--{name.replace('_', '-')}", hidden=True)]
