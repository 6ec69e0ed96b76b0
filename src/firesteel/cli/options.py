"""Options that several verbs share, and output as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firesteel.cli.app import show_error
from firesteel.config import resolve
from firesteel.errors import KernelError
from firesteel.exit_code import ExitCode
from firesteel.hub import find_checkpoint

if TYPE_CHECKING:
    from firesteel.kernels.op.op import Op
    from firesteel.model.spec import ModelSpec


AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
Ops = Annotated[list[str] | None, typer.Option("--op", help="op to run; may be repeated (default: all)")]
Required = Annotated[
    list[str] | None,
    typer.Option(
        "--require",
        metavar="PATTERN",
        help="requirements OP=IMPLEMENTATION[@VERDICT], joined by commas; may be repeated",
    ),
]
Model = Annotated[str, typer.Option(help="model: gpt-oss-120b, gpt-oss-20b or a checkpoint")]
Device = Annotated[str, typer.Option(help="device: auto, cpu, cuda or cuda:N")]


def check_model(settings: dict[str, Any]) -> None:
    """Raises UserError if the model is missing: before torch is imported, which takes seconds."""
    find_checkpoint(resolve(settings).config.model.model)


def choose_ops(names: list[str] | None, *required: str) -> tuple[Op[Any, Any], ...]:
    """Returns the named and the required ops; all ops if none is named."""
    from firesteel.kernels.registry import ALL_OPS, find_op

    wanted = {find_op(name).name for name in (*(names or ()), *required)}
    return tuple(op for op in ALL_OPS if not names or op.name in wanted)


def find_spec(model: str) -> ModelSpec:
    from firesteel.model.spec import PRESETS, read_spec

    return PRESETS[model] if model in PRESETS else read_spec(find_checkpoint(model))


@contextmanager
def failing() -> Iterator[None]:
    """Exits as failed, not as wrongly used, for an unmet requirement."""
    try:
        yield
    except KernelError as error:
        show_error(error)
        raise typer.Exit(ExitCode.FAILED) from error


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))
