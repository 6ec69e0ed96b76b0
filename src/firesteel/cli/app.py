"""The program's entry point and the flags that every knob becomes; knows no verb."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from firesteel.config import Knob, knobs
from firesteel.config.spellings import RETIRED
from firesteel.errors import UserError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Entry point: a UserError is shown as one line, anything else is a bug and keeps its traceback."""
    try:
        app()
    except UserError as error:
        show_error(error)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def show_error(error: object) -> None:
    """As one line on stderr."""
    message = " ".join(str(error).splitlines())
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


def with_knobs(command: Callable[..., None], *, is_server: bool = False) -> Callable[..., None]:
    """Gives a command a flag for every knob, the server's only where asked; those given reach it as `knobs`."""
    offered = [knob for knob in knobs().values() if is_server or knob.section != "server"]
    own = [one for one in inspect.signature(command).parameters.values() if one.name != "knobs"]
    flags = [
        inspect.Parameter(knob.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_flag(knob))
        for knob in offered
    ]
    flags += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_retired_flag(name))
        for name in RETIRED
    ]

    def run(**given: Any) -> None:
        chosen = {flag.name: given.pop(flag.name) for flag in flags}
        command(**given, knobs={name: value for name, value in chosen.items() if value is not None})

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    hints = inspect.get_annotations(command, eval_str=True)
    own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in own]
    run.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in (*own, *flags)}
    return run


def _retired_flag(name: str) -> Any:
    return Annotated[str | None, typer.Option(f"--{name.replace('_', '-')}", hidden=True)]


def _flag(knob: Knob) -> Any:
    name = f"--{knob.name.replace('_', '-')}"
    names = [f"{name}/--no-{name[2:]}"] if knob.type is bool else [name]
    names += [f" /{knob.off_flag}"] if knob.off_flag else []
    default = "none" if knob.default == "" else knob.default
    text = escape(f"{knob.help} (default {default}; {knob.env})")  # rich takes square brackets for markup
    return Annotated[knob.type | None, typer.Option(*names, help=text, rich_help_panel=f"{knob.section} settings")]
