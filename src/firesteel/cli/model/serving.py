"""What `serve` does: chooses defaults, loads the model in a process of its own, and runs the HTTP server."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from firesteel.cli.progress import loading_bars
from firesteel.cli.tables import choice_table, new_table, say
from firesteel.config import Config, ServerConfig, list_keys, resolve
from firesteel.defaults import find_defaults
from firesteel.device import GIB, find_device
from firesteel.engine.process.client import EngineClient
from firesteel.errors import EngineFailed
from firesteel.heap import settled_heap
from firesteel.hub import find_checkpoint, find_draft_model
from firesteel.server.app import build_app
from firesteel.server.observe.access_log import set_up_logs
from firesteel.server.run import Server, bind, url_of
from firesteel.server.service import Service
from firesteel.version import find_version


def serve_model(settings: dict[str, Any]) -> None:
    """Serves until it is stopped."""
    device = find_device(resolve(settings).config.model.device)
    defaults = find_defaults(settings, device)
    defaults.config.speculate.check(defaults.settings.origins)
    say(f"firesteel {find_version()}")
    if defaults.choices:
        Console(stderr=True).print(choice_table(defaults, device.name))
    asyncio.run(run(defaults.config))


async def run(config: Config) -> None:
    """Binds the port before the model is loaded, so that a wrong port fails at once."""
    directory = find_checkpoint(config.model.model)
    config = config.with_draft_model(find_draft_model, directory)
    with bind(config.server) as bound:
        warn_if_open(bound, config.server)
        engine = await load(directory, config)
        try:
            service = Service(engine, directory, config)
            set_up_logs(as_json=config.server.log_format == "json")
            server = Server(
                build_app(service),
                config.server,
                service.admission,
                when_ready=announcer(service, url_of(bound)),
                when_stopping=lambda: say("stopping after the running requests; press Ctrl-C again to stop now"),
                find_failure=lambda: engine.failure,
            )
            service.trials.warm()
            try:
                with settled_heap():
                    await server.serve([bound])
            finally:
                service.close()
        finally:
            await engine.close()
    if server.failure is not None:
        raise EngineFailed(server.failure)
    with suppress(OSError):  # the terminal may be closed
        say("stopped")


async def load(directory: Path, config: Config) -> EngineClient:
    """Starts the engine process, without the server's settings: it has no use for the API key."""

    start = time.perf_counter()
    say(f"loading {config.model.model} from {directory}")
    with loading_bars() as (progress, preparing):
        private = dataclasses.replace(config, server=ServerConfig())
        engine = await EngineClient.start(directory, private, progress=progress, preparing=preparing)
    facts, seconds = engine.facts, time.perf_counter() - start
    say(f"weights read in {facts.load_s:.1f} s; engine ready on {facts.device} in {seconds:.1f} s")
    say(
        f"context {facts.max_context} tokens; cache {facts.cache_bytes / GIB:.2f} GiB, {facts.pages} pages of "
        f"{facts.page_size} tokens; up to {facts.max_num_seqs} concurrent requests"
    )
    if (drafting := config.speculate).speculate != "off":
        network = f" by {drafting.draft_model}" if drafting.draft_model else ""
        say(f"drafts: {drafting.speculate}{network}; /metrics counts those accepted")
    table = new_table("op", "runs as")
    for op, runs in facts.kernels.items():
        table.add_row(op, runs)
    Console(stderr=True).print(table)
    return engine


def announcer(service: Service, url: str) -> Callable[[], None]:
    """Returns a function that prints the address to stdout, for programs that start the server; rest to stderr."""

    def announce() -> None:
        body = {
            "model": service.names[0],
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
        }
        key = " -H 'authorization: Bearer KEY'" if service.keys.is_needed else ""
        say(f"try: curl {url}/v1/chat/completions -H 'content-type: application/json'{key} -d '{json.dumps(body)}'")
        say(f"serving {', '.join(service.names)}; press Ctrl-C to stop")
        print(url, flush=True)

    return announce


def warn_if_open(bound: socket.socket, config: ServerConfig) -> None:
    """Warns if other machines can use the server without a key."""
    address = ipaddress.ip_address(bound.getsockname()[0].partition("%")[0])
    keys = list_keys(config.api_key, config.api_key_file)
    if not address.is_loopback and not keys:
        say(f"warning: anyone who can reach {address} can use this server; set --api-key to prevent that")
