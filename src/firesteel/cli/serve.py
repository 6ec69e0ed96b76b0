"""The verb serve: loads a model and answers the OpenAI API until it is told to stop; knows no endpoint."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Annotated, Any

import typer

from firesteel.cli.app import app, with_knobs
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import say
from firesteel.config import Config, ServerConfig, resolve
from firesteel.engine.client import EngineClient
from firesteel.hub import find_checkpoint
from firesteel.server.app import build_app
from firesteel.server.journal import set_up_logs
from firesteel.server.run import Server, bind, url_of
from firesteel.server.service import Service


@app.command()
@with_knobs
def serve(
    knobs: dict[str, Any],
    checkpoint: Annotated[str | None, typer.Argument(metavar="MODEL", help="as --model")] = None,
) -> None:
    """Serve a model to clients of the OpenAI API."""
    config = resolve({**({} if checkpoint is None else {"model": checkpoint}), **knobs}).config
    asyncio.run(run(config))


async def run(config: Config) -> None:
    directory = find_checkpoint(config.model.model)
    with bind(config.server) as bound:
        say(f"loading {directory}")
        with progress_bar("loading weights", in_bytes=True) as report:
            private = dataclasses.replace(config, server=ServerConfig())  # the key is not the engine's
            engine = await EngineClient.start(directory, private, progress=report)
        try:
            service = Service(engine, directory, config)
            set_up_logs(as_json=config.server.log_format == "json")
            server = Server(
                build_app(service), config.server, service.admission,
                when_ready=lambda: print(url_of(bound), flush=True),
            )  # fmt: skip
            await server.serve([bound])
        finally:
            await engine.close()
