"""A server in front of the stub engine, pinned to one core, to measure the cost of the front end.

`python -m firesteel.server.stub.server RATE` prints its address and serves until it is stopped.
"""

from __future__ import annotations

import asyncio
import os
import sys

from firesteel.config import resolve
from firesteel.engine.process.client import EngineClient
from firesteel.hub import BUILT_IN
from firesteel.server.app import build_app
from firesteel.server.run import Server, bind, url_of
from firesteel.server.service import Service

ENGINE = ("-m", "firesteel.server.stub.engine")


async def serve(rate: float) -> None:
    config = resolve({"port": 0}).config
    with bind(config.server) as bound:
        engine = await EngineClient.start(BUILT_IN, config, program=(*ENGINE, str(rate)))
        stay_on_one_core()
        try:
            service = Service(engine, BUILT_IN, config)
            await Server(
                build_app(service),
                config.server,
                service.admission,
                when_ready=lambda: print(url_of(bound), flush=True),
                find_failure=lambda: engine.failure,
            ).serve([bound])
        finally:
            await engine.close()


def stay_on_one_core() -> None:
    """Pins the process to the last core: the first one serves interrupts on many machines."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
