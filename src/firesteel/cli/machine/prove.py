"""The verb `prove`: compiles kernels for any GPU and shows their machine code."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from firesteel.cli.app import app, show_error
from firesteel.cli.options import AsJson, Ops, Required, choose_ops, failing, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import library_table, proof_table, say, show
from firesteel.errors import KernelError
from firesteel.exit_code import ExitCode

DEFAULT_TARGET = "sm_121a"


@app.command()
def prove(
    op: Ops = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="target: sm_90a, sm_121a, ...; may be repeated (default: this GPU, else sm_121a)"),
    ] = None,
    library: Annotated[
        list[Path] | None,
        typer.Option(help="compiled library (.so) whose kernels are read instead; may be repeated"),
    ] = None,
    require: Required = None,
    as_json: AsJson = False,
) -> None:
    """Compile every kernel variant, also for GPUs that are not in this machine, and show its instructions."""
    from firesteel.kernels.op.requirement import list_requirements
    from firesteel.kernels.proof.prove import check
    from firesteel.kernels.proof.prove_all import prove_all

    if library:
        show_libraries(library, as_json=as_json)
        return
    required = list_requirements(",".join(require or []))
    ops = choose_ops(op, *(requirement.op for requirement in required))
    here, why_not = target_here()
    if why_not and not target:
        say(f"{why_not}; compiling for {DEFAULT_TARGET} instead")
    targets = list(dict.fromkeys(target or [here or DEFAULT_TARGET]))
    with progress_bar("compiling") as report_progress:
        proofs, failures = prove_all(ops, targets, progress=report_progress)
    if as_json:
        print_json([proof.as_dict() for proof in proofs])
    else:
        for name in targets:
            show(proof_table([proof for proof in proofs if proof.target == name], name, is_here=name == here))
    wrong = [f"{code.op} {code.variant} does not compile for {code.target}: {code.reason}" for code in failures]
    wrong += [proof.excess for proof in proofs if not proof.fits]
    for line in wrong:
        show_error(line)
    with failing():
        for name in targets:
            check([proof for proof in proofs if proof.target == name], required)
    if wrong:
        raise typer.Exit(ExitCode.FAILED)
    if not proofs:
        say("no kernel was compiled, so nothing is proven")
        raise typer.Exit(ExitCode.UNPROVEN)


def show_libraries(paths: list[Path], *, as_json: bool) -> None:
    """Shows the kernels of compiled libraries; nothing is compiled."""
    from firesteel.kernels.proof.library import read_library

    for path in paths:
        kernels = read_library(path)
        if as_json:
            print_json([asdict(kernel) for kernel in kernels])
        else:
            show(library_table(kernels, path))


def target_here() -> tuple[str | None, str]:
    """Returns this GPU's target, or None and why there is none; the reason is empty on a CPU."""
    from firesteel.device import find_device
    from firesteel.kernels.target import find_target

    capability = find_device().capability
    if capability is None:
        return None, ""
    try:
        return find_target(capability), ""
    except KernelError as error:
        return None, str(error)
