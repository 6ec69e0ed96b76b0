"""The verb group `lab` and its verb `run`; the other verbs are in files beside this one."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from firesteel.cli.bench.options import parse_numbers
from firesteel.cli.folder import writing_to
from firesteel.cli.group import make_group
from firesteel.cli.help_page import FURTHER
from firesteel.cli.tables import say, show
from firesteel.lab.servers.shutdown import stop_servers_on_signals
from firesteel.lab.spec import FLAGS, HELP, LabSpec
from firesteel.lab.verdict import Verdict

NUMBERS = tuple[int, ...]  # written as 512,2048
lab = make_group("lab")
FIRST = ("mode", "level", "engine", "url", "model", "path", "baseline", "reference_url", "quick", "allow_unjudged")
Out = Annotated[Path, typer.Option(help="folder for logs, result.json, records and the report")]


@lab.callback()
def begin() -> None:
    """Verify, stress, measure and compare engines."""
    stop_servers_on_signals()


def run(out: Path, **settings: Any) -> None:
    """Take a server through levels 1 to 6.

    The exit code is 1 if a level failed, and 3 if the kernel path or the answers could not be judged.
    """
    from firesteel.cli.lab.run_table import open_run_table
    from firesteel.cli.lab.slot_table import slot_table
    from firesteel.lab.run import run_lab

    spec = make_spec(settings)
    with writing_to(out), open_run_table(spec) as observer:
        result = run_lab(spec, out, observer)
    if result.any_slots is not None:
        show(slot_table(result.any_slots))
    verdict = result.verdict
    word = verdict.value if result.passed else verdict.value.upper()
    say(f"{word} after {result.seconds:.0f} s; report: {out / 'report.html'}")
    if verdict is Verdict.UNPROVEN and result.unjudged:
        say(f"not judged: level {', '.join(map(str, result.unjudged))}; --allow-unjudged accepts that")
    if verdict is Verdict.FAILED or not spec.allow_unjudged:
        raise typer.Exit(verdict.exit_code)


def make_spec(settings: dict[str, Any]) -> LabSpec:
    """Builds the spec.

    It has tuples where the command line gives lists, or numbers joined by commas; None stands for an empty one.
    """
    hints = get_type_hints(LabSpec)
    given: dict[str, Any] = {}
    for name, value in settings.items():
        if value is not None and hints[name] == NUMBERS:
            given[name] = parse_numbers(f"--{name}", value, 0, None)
        elif value is not None:
            given[name] = tuple(value) if isinstance(value, list) else value
    return LabSpec(**given)


def list_parameters() -> list[inspect.Parameter]:
    """Returns a command-line parameter for each setting, and --out."""
    hints = get_type_hints(LabSpec)
    settings = [_parameter(declared, hints[declared.name]) for declared in dataclasses.fields(LabSpec)]
    out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=Path("firesteel-lab"), annotation=Out)
    return [*settings, out]


def _parameter(declared: dataclasses.Field[Any], kind: Any) -> inspect.Parameter:
    help_text = declared.metadata[HELP]
    is_list, is_numbers = kind == tuple[str, ...], kind == NUMBERS
    if declared.name == FLAGS:
        option: Any = typer.Argument(metavar="[-- FLAGS]", help=help_text)
    else:
        names = [f"--{declared.name.replace('_', '-')}"] if kind is bool else []
        panel = None if declared.name in FIRST else f"{FURTHER}options"
        option = typer.Option(*names, help=help_text, rich_help_panel=panel)
    return inspect.Parameter(
        declared.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if is_list or is_numbers else declared.default,
        annotation=Annotated[list[str] | None if is_list else str | None if is_numbers else kind, option],
    )


run.__signature__ = inspect.Signature(list_parameters())  # type: ignore[attr-defined]
run.__annotations__ = {parameter.name: parameter.annotation for parameter in list_parameters()}
lab.command()(run)
