"""Options that several verbs share, what they mean, and how results leave the program; knows no verb."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from firesteel.cli.app import show_error
from firesteel.errors import KernelError
from firesteel.hub import find_checkpoint
from firesteel.kernels.op.op import Op
from firesteel.kernels.registry import ALL_OPS, find_op
from firesteel.model.spec import PRESETS, ModelSpec, read_spec

AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
Ops = Annotated[list[str] | None, typer.Option("--op", help="only this op; may be repeated")]
Required = Annotated[
    list[str] | None,
    typer.Option(
        "--require",
        metavar="PATTERN",
        help="OP=IMPLEMENTATION, then @VERDICT if wanted; several joined by commas, or repeated",
    ),
]
Model = Annotated[str, typer.Option(help="gpt-oss-120b, gpt-oss-20b or a checkpoint")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")]


def choose_ops(names: list[str] | None, *required: str) -> tuple[Op[Any, Any], ...]:
    """Those named, and those required; all if none is named."""
    wanted = {find_op(name).name for name in (*(names or ()), *required)}
    return tuple(op for op in ALL_OPS if not names or op.name in wanted)


def find_spec(model: str) -> ModelSpec:
    return PRESETS[model] if model in PRESETS else read_spec(find_checkpoint(model))


@contextmanager
def exit_code_one() -> Iterator[None]:
    """A requirement that is not met is no misuse: its error ends with 1, not 2."""
    try:
        yield
    except KernelError as error:
        show_error(error)
        raise typer.Exit(1) from error


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))
