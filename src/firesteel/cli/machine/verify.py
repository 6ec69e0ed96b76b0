"""The verb `verify`: compares every implementation with its reference on this machine."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from firesteel.cli.app import app
from firesteel.cli.options import AsJson, Device, Model, Ops, choose_ops, find_spec, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import check_table, say, show
from firesteel.errors import UserError
from firesteel.exit_code import ExitCode

if TYPE_CHECKING:
    from firesteel.kernels.op.op import Op
    from firesteel.kernels.proof.verify import Check


@app.command()
def verify(
    op: Ops = None,
    quick: Annotated[bool, typer.Option("--quick", help="only the smallest sample per implementation")] = False,
    implementation: Annotated[
        list[str] | None, typer.Option(help="triton, triton:gemm and so on; may be repeated (default: all)")
    ] = None,
    device: Device = "auto",
    model: Model = "gpt-oss-120b",
    as_json: AsJson = False,
) -> None:
    """Compare every implementation with its reference on this machine; exit code 1 if one fails, 3 if none ran."""
    from firesteel.device import find_device
    from firesteel.kernels.proof.verify import Status
    from firesteel.measure.ops.correctness import check_apart, check_ops

    spec, ops, here = find_spec(model), choose_ops(op), find_device(device)
    names = tuple(implementation or ())
    check_names(ops, names)
    check_all = check_apart if here.is_cuda else check_ops
    checks: list[Check] = []
    try:
        with progress_bar("verifying") as report_progress:
            for check in check_all(ops, here, spec, quick=quick, names=names, progress=report_progress):
                checks.append(check)  # finished checks are shown even after an interrupt
    finally:
        show_checks(checks, here.name, as_json=as_json)
    statuses = {check.status for check in checks}
    if Status.FAILED in statuses:
        raise typer.Exit(ExitCode.FAILED)
    if Status.PASSED not in statuses:
        raise typer.Exit(ExitCode.UNPROVEN)


def check_names(ops: tuple[Op[Any, Any], ...], names: tuple[str, ...]) -> None:
    """Raises for a name that none of the ops has."""
    from firesteel.kernels.op.op import REFERENCE
    from firesteel.measure.ops.correctness import is_named

    known = sorted({name for op in ops for name in op.implementations if name != REFERENCE})
    for name in names:
        if not any(is_named(implementation, (name,)) for implementation in known):
            raise UserError(f"--implementation {name}: these ops have {', '.join(known)}")


def show_checks(checks: list[Check], device_name: str, *, as_json: bool) -> None:
    from firesteel.kernels.proof.verify import Status

    if as_json:
        print_json([check.as_dict() for check in checks])
        return
    counts = Counter(check.status for check in checks)
    show(check_table(checks, device_name))
    show(Text(", ".join(f"{counts[status]} {status.value}" for status in Status)))
    if not counts[Status.PASSED] and not counts[Status.FAILED]:
        say("no implementation ran, so nothing is verified on this machine")
