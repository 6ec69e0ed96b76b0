"""Cost of the HTTP front end, measured beside an engine that computes nothing.

A stub engine in its own process sends tokens to several streams at a given rate. The front end, pinned to one core,
keeps up if its clients receive them at that rate.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import psutil  # type: ignore[import-untyped]

from firesteel.config import resolve
from firesteel.device import find_device
from firesteel.errors import UserError
from firesteel.measure.record import Record
from firesteel.server.stub.clients import ClientStream, read_streams

SERVER = ("-m", "firesteel.server.stub.server")
WARM_TOKENS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendRound:
    tok_s: float  # of all clients together
    core_share: float  # CPU time of the front end, in cores
    us_a_token: float  # CPU time of the front end
    chunks_a_token: float
    bytes_a_token: float


@contextmanager
def front_end(rate: float) -> Iterator[tuple[str, psutil.Process]]:
    """Starts the stub server with an engine of `rate` tokens per second; yields its address and process."""
    command = [sys.executable, *SERVER, str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as child:
        try:
            assert child.stdout is not None
            url = child.stdout.readline().strip()
            if not url:
                raise UserError("the stub server did not start; its error output is above")
            yield url, psutil.Process(child.pid)
        finally:
            child.terminate()


def measure_round(url: str, process: psutil.Process, concurrency: int, max_tokens: int) -> FrontendRound:
    """Reads `concurrency` streams of `max_tokens` tokens at once."""
    before = cpu_seconds(process)
    streams = asyncio.run(read_streams(url, concurrency, max_tokens))
    return summarise(streams, cpu_seconds(process) - before, max_tokens)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def summarise(streams: Sequence[ClientStream], cpu_s: float, max_tokens: int) -> FrontendRound:
    seconds = max(stream.last for stream in streams) - min(stream.sent for stream in streams)
    tokens = max_tokens * len(streams)
    return FrontendRound(
        tok_s=tokens / seconds,
        core_share=cpu_s / seconds,
        us_a_token=1e6 * cpu_s / tokens,
        chunks_a_token=sum(stream.num_chunks for stream in streams) / tokens,
        bytes_a_token=sum(stream.num_bytes for stream in streams) / tokens,
    )


def medians(rounds: Sequence[FrontendRound]) -> dict[str, float]:
    names = asdict(rounds[0])
    return {name: float(statistics.median(getattr(figures, name) for figures in rounds)) for name in names}


def record(rounds: Sequence[FrontendRound], shape: dict[str, Any]) -> Record:
    """Builds the record; its samples are tokens per second received, one per round."""
    return Record.now(
        find_device("cpu"),
        resolve({}).config,
        name="frontend",
        unit="tok/s",
        samples=[figures.tok_s for figures in rounds],
        warmups=1,
        parameters={**shape, **medians(rounds)},
    )
