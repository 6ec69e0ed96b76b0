"""The verb serve: loads a model and answers the OpenAI API until it is told to stop; knows no endpoint."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import json
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from firesteel.cli.app import app, with_knobs
from firesteel.cli.model.vllm_flags import translate, with_familiar
from firesteel.cli.progress import loading_bars
from firesteel.cli.tables import new_table, say
from firesteel.config import Config, ServerConfig, Settings, resolve
from firesteel.device import GIB
from firesteel.engine.process.client import EngineClient
from firesteel.errors import UserError
from firesteel.heap import settled_heap
from firesteel.hub import find_checkpoint
from firesteel.server.app import build_app
from firesteel.server.observe.access_log import set_up_logs
from firesteel.server.run import Server, bind, url_of
from firesteel.server.service import Service
from firesteel.version import find_version


@app.command()
@with_familiar
@partial(with_knobs, is_server=True)
def serve(
    knobs: dict[str, Any],
    familiar: dict[str, Any],
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="as --model; kindling, which is built in, without it")
    ] = None,
) -> None:
    """Serve a model to clients of the OpenAI API. Flags of a vLLM line for gpt-oss are understood."""
    settings, lines = translate(familiar, knobs)
    if checkpoint is not None and settings.setdefault("model", checkpoint) != checkpoint:
        raise UserError(f"two models are named: {checkpoint} and --model {settings['model']}")
    config = with_first_step(resolve(settings))
    say(f"firesteel {find_version()}")
    for line in lines:
        say(line)
    asyncio.run(run(config))


def with_first_step(settings: Settings) -> Config:
    """Unless told otherwise, the step of one request is captured before the first one comes."""
    config = settings.config
    if settings.origins["capture_at_start"] != "default":
        return config
    return dataclasses.replace(config, batch=dataclasses.replace(config.batch, capture_at_start=1))


async def run(config: Config) -> None:
    """The port is taken before the model is loaded, so that a wrong one is known at once."""
    directory = find_checkpoint(config.model.model)
    with bind(config.server) as bound:
        warn_of_strangers(bound, config.server)
        engine = await load(directory, config)
        try:
            service = Service(engine, directory, config)
            set_up_logs(as_json=config.server.log_format == "json")
            server = Server(
                build_app(service),
                config.server,
                service.admission,
                when_ready=announcer(service, url_of(bound)),
                when_stopping=lambda: say("stopping when the requests under way are answered; Ctrl-C again: now"),
            )
            with settled_heap():
                await server.serve([bound])
        finally:
            await engine.close()
    say("stopped")


async def load(directory: Path, config: Config) -> EngineClient:
    """The API key stays here: the engine has no use for it."""
    start = time.perf_counter()
    say(f"loading {config.model.model} from {directory}")
    with loading_bars() as (progress, capturing):
        private = dataclasses.replace(config, server=ServerConfig())
        engine = await EngineClient.start(directory, private, progress=progress, capturing=capturing)
    facts, seconds = engine.facts, time.perf_counter() - start
    say(f"weights read in {facts.load_s:.1f} s; engine ready on {facts.device} in {seconds:.1f} s")
    say(
        f"context {facts.max_context} tokens; cache {facts.cache_bytes / GIB:.2f} GiB, {facts.pages} pages of "
        f"{facts.page_size} tokens; up to {config.batch.max_num_seqs} requests at once"
    )
    table = new_table("op", "runs as")
    for op, runs in facts.kernels.items():
        table.add_row(op, runs)
    Console(stderr=True).print(table)
    return engine


def announcer(service: Service, url: str) -> Callable[[], None]:
    """The address alone goes to stdout, for programs that start the server."""

    def announce() -> None:
        body = {
            "model": service.names[0],
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
        }
        key = " -H 'authorization: Bearer KEY'" if service.config.server.api_key else ""
        say(f"try: curl {url}/v1/chat/completions -H 'content-type: application/json'{key} -d '{json.dumps(body)}'")
        say(f"serving {', '.join(service.names)}; Ctrl-C stops")
        print(url, flush=True)

    return announce


def warn_of_strangers(bound: socket.socket, config: ServerConfig) -> None:
    address = ipaddress.ip_address(bound.getsockname()[0].partition("%")[0])
    if not address.is_loopback and not config.api_key:
        say(f"warning: anyone who reaches {address} may use this server: give it an --api-key")
