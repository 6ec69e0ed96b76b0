"""One cell of a matrix: starts the server with its gates, measures it, writes the outcome; knows no other cell.

python -m firesteel.lab.matrix.cell ORDER.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.lab.bench.bench import BenchResult, measure
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.client.api import Api
from firesteel.lab.matrix.matrix import CRASHED, DONE, flags_of
from firesteel.lab.servers.commands import find_key, find_model, make_command, name_kind
from firesteel.lab.servers.shutdown import stop_servers_when_ended
from firesteel.lab.servers.supervisor import Supervised, find_free_port
from firesteel.lab.servers.target import Target
from firesteel.whole import write_whole

GB = 1e9


def run_cell(order: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What happened, also where the server failed."""
    flags = [*order["flags"], *flags_of(order["chosen"], engine=order["engine"])]
    try:
        command = make_command(
            order["engine"], model=find_model(order["engine"], order["model"]), port=find_free_port(),
            folder=folder, flags=flags, debug=order["debug"],
        )  # fmt: skip
        command = replace(command, ready_s=order["ready_s"], grace_s=order["grace_s"])
        with Supervised(command, folder) as server:
            key = find_key(flags, engine=order["engine"])
            api = Api(url=command.url, api_key=key, timeout_s=order["answer_s"])
            target = Target(
                api=api, kind=name_kind(order["engine"]), folder=folder, model=order["model"], server=server
            )
            with target.step("a cell of the matrix"):  # of a server that hangs or is gone: why, and its bundle
                bench = measure(
                    command.url, plan=BenchPlan.parse(order["plan"]), api_key=api.api_key,
                    pid=server.family.leader, startup_s=server.startup_s, timeout_s=api.timeout_s,
                )  # fmt: skip
    except UserError as error:
        return {"status": CRASHED, "figures": {}, "reason": str(error)}
    if bench.failures:
        return {"status": CRASHED, "figures": {}, "reason": bench.failures[0], "bench": bench.as_dict()}
    return {"status": DONE, "figures": find_figures(bench), "reason": "", "bench": bench.as_dict()}


def find_figures(bench: BenchResult) -> dict[str, float]:
    """Medians of the first workload."""
    series = bench.rows[0].series
    found: dict[str, float] = {
        name: series[name].median for name in ("tg_tok_s", "pp_tok_s", "ttft_ms") if name in series
    }
    if bench.usage is not None:
        found["peak_memory_gb"] = (bench.usage.peak_gpu_bytes or bench.usage.peak_memory_bytes) / GB
    return found if bench.startup_s is None else {**found, "startup_s": bench.startup_s}


def main() -> None:
    stop_servers_when_ended()
    path = Path(sys.argv[1])
    order = json.loads(path.read_text(encoding="utf-8"))
    write_whole(path.with_name("outcome.json"), run_cell(order, path.parent))


if __name__ == "__main__":
    main()
