"""The verb lab, a group, and its verb run; the other verbs are in files beside it, the work is in firesteel.lab."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firesteel.cli.app import app
from firesteel.cli.folder import writing_to
from firesteel.cli.lab.board import board
from firesteel.cli.tables import say
from firesteel.lab.level import MODES, TITLES
from firesteel.lab.run import run_lab
from firesteel.lab.servers.shutdown import stop_servers_when_ended
from firesteel.lab.spec import Order

lab = typer.Typer(no_args_is_help=True)
app.add_typer(lab, name="lab")


@lab.callback()
def begin() -> None:
    """Verify, stress, measure and compare engines."""
    stop_servers_when_ended()


@lab.command()
def run(
    flags: Annotated[
        list[str] | None, typer.Argument(metavar="[-- FLAGS]", help="for the engine's own command line")
    ] = None,
    mode: Annotated[str, typer.Option(help=", ".join(MODES))] = "all",
    level: Annotated[
        str, typer.Option(help="this alone: " + ", ".join(f"{number} {title}" for number, title in TITLES.items()))
    ] = "",
    engine: Annotated[
        str,
        typer.Option(help="firesteel, vllm, sglang, llamacpp, or a command with {port} and, if wanted, {model}"),
    ] = "firesteel",
    model: Annotated[
        str, typer.Option(help="checkpoint folder, name in the local cache, or kindling")
    ] = "kindling",
    url: Annotated[str, typer.Option(help="of a server that runs already; none is started")] = "",
    path: Annotated[
        str, typer.Option(help="kernel path that must be seen, as native-fp4; any that is no fallback without it")
    ] = "",
    trace: Annotated[str, typer.Option(help="profile of the engine: PyTorch's JSON or nsys's SQLite")] = "",
    gates: Annotated[
        list[str] | None, typer.Option(help="of level 6, as kv_dtype=auto,fp8; may be repeated; chosen without it")
    ] = None,
    baseline: Annotated[
        str, typer.Option(help="result of an earlier run, for level 5; the first run in --out without it")
    ] = "",
    slower: Annotated[float, typer.Option(help="percent from which level 5 calls a figure slower")] = 3.0,
    more_gb: Annotated[float, typer.Option(help="GB of peak memory from which level 5 calls it more")] = 1.0,
    reference_url: Annotated[
        str, typer.Option(help="server that is right, for level 2; small models are computed here without it")
    ] = "",
    requests: Annotated[int | None, typer.Option(help="of level 3; 200, or 40 with --quick, without it")] = None,
    concurrency: Annotated[int | None, typer.Option(help="of them at once; 8, or 4 with --quick")] = None,
    sequential: Annotated[
        int | None, typer.Option(help="requests in a row after them; 100, or 20 with --quick")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="minutes on a CPU; the report says what was reduced")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="blocking launches, C++ stacks, verbose logs: for faults, not for speed")
    ] = False,
    ready_s: Annotated[float, typer.Option(help="seconds that a server may take to become ready")] = 1800.0,
    answer_s: Annotated[float, typer.Option(help="seconds that an answer may take")] = 600.0,
    grace_s: Annotated[float, typer.Option(help="seconds from the request to stop until force is used")] = 45.0,
    seed: Annotated[int, typer.Option(help="of prompts and sampling")] = 7,
    out: Annotated[Path, typer.Option(help="folder for logs, result.json, records and the report")] = Path(
        "firesteel-lab"
    ),
) -> None:
    """Take a server through levels 1 to 6; exit code 0 only if all that was asked for passed."""
    order = Order(
        mode=mode, level=level, engine=engine, model=model, url=url, flags=tuple(flags or ()), path=path,
        trace=trace, gates=tuple(gates or ()), baseline=baseline, slower=slower, more_gb=more_gb,
        reference_url=reference_url, quick=quick,
        debug=debug, ready_s=ready_s, answer_s=answer_s, grace_s=grace_s, seed=seed,
        requests=requests, concurrency=concurrency, sequential=sequential,
    )  # fmt: skip
    with writing_to(out), board(order) as watcher:
        result = run_lab(order, out, watcher)
    verdict = "passed" if result["passed"] else "FAILED"
    say(f"{verdict} after {result['seconds']:.0f} s; report: {out / 'report.html'}")
    if not result["passed"]:
        raise typer.Exit(1)
