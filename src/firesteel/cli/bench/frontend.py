"""The verb bench frontend: what the HTTP server costs beside an engine that costs nothing; knows no model.

A stub engine in a process of its own sends so many tokens a second to so many streams. The front end, held to one
core, has kept up if its clients get them at that rate.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import psutil  # type: ignore[import-untyped]
import typer
from rich.table import Table

from firesteel.cli.app import show_error
from firesteel.cli.bench.ops import bench
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import new_table, say, show
from firesteel.config import resolve
from firesteel.device import find_device
from firesteel.errors import UserError
from firesteel.measure.record import Record
from firesteel.server.stub.clients import Visit, visit_together

SERVER = ("-m", "firesteel.server.stub.server")
WARM_TOKENS = 50
ENOUGH = 0.97  # share of the rate: a round's beginning and end are slower


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    tok_s: float  # that all clients got together
    core_share: float  # CPU time of the front end, in cores
    us_a_token: float  # of the same
    chunks_a_token: float
    bytes_a_token: float


@bench.command(name="frontend")
def bench_frontend(
    concurrency: Annotated[int, typer.Option(min=1, help="streams at once")] = 32,
    rate: Annotated[float, typer.Option(min=1, help="tokens a second that the engine sends in all")] = 10_000.0,
    max_tokens: Annotated[int, typer.Option(min=2, help="of each stream")] = 3000,
    rounds: Annotated[int, typer.Option(min=1, help="timed passes")] = 5,
    out: Annotated[Path, typer.Option(help="folder for records")] = Path("firesteel-bench"),
    as_json: AsJson = False,
) -> None:
    """Whether the HTTP server keeps up with an engine, on one core, and what a token costs there."""
    with front_end(rate) as (url, process), progress_bar("measuring") as report_progress:
        measure(url, process, concurrency, WARM_TOKENS)
        found = []
        for number in range(rounds):
            found.append(measure(url, process, concurrency, max_tokens))
            report_progress(number + 1, rounds)
    shape = {"concurrency": concurrency, "rate_tok_s": rate, "max_tokens": max_tokens}
    record(found, shape).save(out)
    if as_json:
        print_json({**shape, **medians(found)})
    else:
        show(frontend_table(found, shape))
    say(f"records are in {out}")
    if medians(found)["tok_s"] < ENOUGH * rate:
        show_error(f"the front end did not keep up with {rate:g} tokens a second")
        raise typer.Exit(1)


@contextmanager
def front_end(rate: float) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, *SERVER, str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as child:
        try:
            assert child.stdout is not None
            url = child.stdout.readline().strip()
            if not url:
                raise UserError("the server did not start; its words are above")
            yield url, psutil.Process(child.pid)
        finally:
            child.terminate()


def measure(url: str, process: psutil.Process, concurrency: int, max_tokens: int) -> Round:
    before = cpu_seconds(process)
    visits = asyncio.run(visit_together(url, concurrency, max_tokens))
    return summarise(visits, cpu_seconds(process) - before, max_tokens)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def summarise(visits: Sequence[Visit], cpu_s: float, max_tokens: int) -> Round:
    seconds = max(one.last for one in visits) - min(one.sent for one in visits)
    tokens = max_tokens * len(visits)
    return Round(
        tok_s=tokens / seconds, core_share=cpu_s / seconds, us_a_token=1e6 * cpu_s / tokens,
        chunks_a_token=sum(one.num_chunks for one in visits) / tokens,
        bytes_a_token=sum(one.num_bytes for one in visits) / tokens,
    )  # fmt: skip


def medians(rounds: Sequence[Round]) -> dict[str, float]:
    names = asdict(rounds[0])
    return {name: float(statistics.median(getattr(one, name) for one in rounds)) for name in names}


def record(rounds: Sequence[Round], shape: dict[str, Any]) -> Record:
    """Samples are tokens a second that arrived, one a round."""
    return Record.now(
        find_device("cpu"), resolve({}).config, name="frontend", unit="tok/s",
        samples=[one.tok_s for one in rounds], warmups=1, parameters={**shape, **medians(rounds)},
    )  # fmt: skip


def frontend_table(rounds: Sequence[Round], shape: dict[str, Any]) -> Table:
    table = new_table("tok/s", "cores", "us a token", "chunks a token", "bytes a token")
    table.title = f"{shape['concurrency']} streams, {shape['rate_tok_s']:g} tokens a second from the engine"
    table.caption = "of the front end alone, held to one core"
    for one in rounds:
        table.add_row(
            f"{one.tok_s:.0f}", f"{one.core_share:.2f}", f"{one.us_a_token:.1f}", f"{one.chunks_a_token:.2f}",
            f"{one.bytes_a_token:.0f}",
        )  # fmt: skip
    return table
