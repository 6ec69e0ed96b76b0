"""Groups of verbs that import a verb's module when it runs, and help pages in plain text.

A page lists what people use first. `--help-all` adds the panels whose names begin with FURTHER.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from firesteel.cli.help_page import FURTHER, describe, write_example, write_panel, write_paragraphs
from firesteel.cli.optional import explain_missing
from firesteel.cli.verbs import PANELS, PROGRAM, VERBS, explain_unknown, list_children
from firesteel.exit_code import ExitCode

HELP_ALL = "--help-all"
NAME_WIDTH = 20  # columns of the longest name on the pages of groups
MAX_WIDTH = 120  # columns of a help page
GROUPS: dict[str, typer.Typer] = {}  # by name; the program itself has the empty name


def make_group(name: str, **options: Any) -> typer.Typer:
    """Returns the group to which the modules of its verbs add their commands."""
    GROUPS[name] = typer.Typer(
        name=name or None,
        cls=VerbGroup,
        add_completion=False,
        no_args_is_help=True,
        subcommand_metavar="VERB ...",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"max_content_width": MAX_WIDTH},
        **options,
    )
    return GROUPS[name]


class VerbCommand(TyperCommand):
    """A verb: its help page has an example and panels; Ctrl-C and a missing package end it in an orderly way."""

    example = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = args[: args.index("--")] if "--" in args else args
        if HELP_ALL in own and not ctx.resilient_parsing:
            ctx.meta[HELP_ALL] = True
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        write_paragraphs(formatter, self.help or "")
        if self.example:
            write_example(formatter, self.example)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        left_out = 0
        for parameter in self.get_params(ctx):
            record = describe(parameter, ctx)
            panel = getattr(parameter, "rich_help_panel", None)
            if record is None:
                continue
            if panel and panel.startswith(FURTHER) and HELP_ALL not in ctx.meta:
                left_out += 1
                continue
            kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panels.setdefault(panel or kind, []).append(record)
        if left_out:
            panels["Options"].append((HELP_ALL, f"Show {left_out} further options and exit."))
        for panel, rows in panels.items():
            if rows:
                write_panel(formatter, panel, rows)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("[[", "[").replace("]]", "]") for piece in super().collect_usage_pieces(ctx)]

    def invoke(self, ctx: Any) -> Any:
        with _ending_well(ctx.command_path):
            return super().invoke(ctx)


class LoadedVerbs(Mapping[str, Any]):
    """The commands of a group by name; taking one imports its module."""

    def __init__(self, group: str) -> None:
        self._names = {verb.name.rpartition(" ")[2]: verb.name for verb in list_children(group)}

    def __getitem__(self, word: str) -> Any:
        return load_verb(self._names[word])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class VerbGroup(TyperGroup):
    """Lists verbs from their table, and loads the module of the one that is asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = LoadedVerbs(self.name or "")

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args[0] in self.commands:
            return args[0], self.commands[args[0]], args[1:]
        if not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(explain_unknown(self.name or "", args[0]))
        return super().resolve_command(ctx, args)

    def get_help_option(self, ctx: Any) -> Any:
        """Gives `--help` the default False instead of None, for which Typer would import pydantic: 0.1 s of CPU."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns the outline of a verb, for lists and completions; nothing is imported for it."""
        verb = VERBS.get(f"{self.name or ''} {cmd_name}".strip())
        return None if verb is None else TyperCommand(cmd_name, short_help=verb.summary)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        write_paragraphs(formatter, self.help or "")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        options = [describe(parameter, ctx) for parameter in self.get_params(ctx)]
        write_panel(formatter, "Options", [row for row in options if row is not None], left=NAME_WIDTH)
        if self.name:
            write_example(formatter, VERBS[self.name].example_line)
            children = list_children(self.name)
            rows = [(verb.name.rpartition(" ")[2], verb.summary) for verb in children]
            write_panel(formatter, "Verbs", rows, left=NAME_WIDTH)
            return
        for panel in PANELS:
            verbs = [verb for verb in VERBS.values() if verb.panel == panel]
            write_panel(formatter, panel, [(verb.name, verb.summary) for verb in verbs], left=NAME_WIDTH)
            write_example(formatter, verbs[0].example_line)


@functools.cache
def load_verb(name: str) -> Any:
    """Imports the module of a verb and returns its command."""
    verb = VERBS[name]
    with _ending_well(f"{PROGRAM} {name}"):
        importlib.import_module(f"firesteel.cli.{verb.module}")
    if verb.is_group:
        return typer.main.get_group(GROUPS[name])
    group, _, word = name.rpartition(" ")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.registered_commands = [
        registered
        for registered in GROUPS[group].registered_commands
        if (registered.name or _name_of(registered.callback)) == word
    ]
    for registered in alone.registered_commands:
        registered.cls = VerbCommand
    command: Any = typer.main.get_command(alone)
    command.example = verb.example_line
    return command


def _name_of(function: Callable[..., Any] | None) -> str:
    return getattr(function, "__name__", "").replace("_", "-")


@contextmanager
def _ending_well(verb: str) -> Iterator[None]:
    """Exits with 130 after Ctrl-C; names a package that is missing."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise typer.Exit(ExitCode.INTERRUPTED) from error
    except ModuleNotFoundError as error:
        explain_missing(verb, error)
        raise
