"""One cell of a matrix: starts a server with its gates, measures it and writes the outcome.

python -m firesteel.lab.matrix.cell SPEC.json
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from firesteel.atomic import write_atomically
from firesteel.errors import UserError
from firesteel.lab.bench.bench import measure
from firesteel.lab.bench.result import BenchResult
from firesteel.lab.client.api import Api
from firesteel.lab.codec import from_json
from firesteel.lab.matrix.gates import make_flags
from firesteel.lab.matrix.matrix import OUTCOME, CellSpec
from firesteel.lab.matrix.result import CRASHED, DONE, CellOutcome
from firesteel.lab.servers.commands import find_key, find_kind, find_model, make_command
from firesteel.lab.servers.shutdown import stop_servers_on_signals
from firesteel.lab.servers.supervisor import SupervisedServer, find_free_port
from firesteel.lab.servers.target import Target

GB = 1e9


def run_cell(spec: CellSpec, folder: Path) -> CellOutcome:
    """Returns an outcome also if the server failed."""
    try:
        bench = measure_server(spec, folder)
    except UserError as error:
        return CellOutcome(status=CRASHED, reason=str(error))
    if bench.failures:
        return CellOutcome(status=CRASHED, reason=bench.failures[0], bench=bench)
    return CellOutcome(status=DONE, figures=first_medians(bench), bench=bench)


def measure_server(spec: CellSpec, folder: Path) -> BenchResult:
    matrix = spec.matrix
    flags = [*matrix.flags, *make_flags(spec.chosen, engine=matrix.engine)]
    command = make_command(
        matrix.engine,
        model=find_model(matrix.engine, matrix.model),
        port=find_free_port(),
        folder=folder,
        flags=flags,
        debug=matrix.debug,
    )
    command = replace(command, ready_s=matrix.ready_s, grace_s=matrix.grace_s)
    with SupervisedServer(command, folder) as server:
        key = find_key(flags, engine=matrix.engine)
        api = Api(url=command.url, api_key=key, timeout_s=matrix.answer_s)
        kind = find_kind(matrix.engine)
        target = Target(api=api, kind=kind, folder=folder, model=matrix.model, server=server)
        with target.step("a cell of the matrix"):  # diagnoses a server that hangs or is gone
            return measure(
                command.url,
                plan=matrix.plan,
                api_key=api.api_key,
                pid=server.processes.leader or None,
                startup_s=server.startup_s,
                timeout_s=api.timeout_s,
            )


def first_medians(bench: BenchResult) -> dict[str, float]:
    """Returns the medians of the first workload, peak memory and start-up time."""
    series = bench.rows[0].series
    names: tuple[str, ...] = ("tg_tok_s", "pp_tok_s", "ttft_ms")
    figures = {name: series[name].median for name in names if name in series}
    if bench.usage is not None:
        figures["peak_memory_gb"] = (bench.usage.peak_gpu_bytes or bench.usage.peak_memory_bytes) / GB
    return figures if bench.startup_s is None else {**figures, "startup_s": bench.startup_s}


def main() -> None:
    stop_servers_on_signals()
    path = Path(sys.argv[1])
    spec = from_json(CellSpec, json.loads(path.read_text(encoding="utf-8")), str(path))
    write_atomically(path.with_name(OUTCOME), run_cell(spec, path.parent).as_dict())


if __name__ == "__main__":
    main()
