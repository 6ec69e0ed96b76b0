"""The verb `serve`: loads a model and serves the OpenAI API until it is stopped."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from firesteel.cli.app import app, with_options, with_settings
from firesteel.cli.progress import loading_bars
from firesteel.cli.tables import choice_table, new_table, say
from firesteel.config import Config, ServerConfig, list_keys, resolve
from firesteel.config.vllm_flags import ACCEPTED_FLAGS, KV_TYPES, REFUSED_FLAGS, translate
from firesteel.defaults import find_defaults
from firesteel.device import GIB, find_device
from firesteel.engine.process.client import EngineClient
from firesteel.errors import EngineFailed, UserError
from firesteel.heap import settled_heap
from firesteel.hub import find_checkpoint
from firesteel.server.app import build_app
from firesteel.server.observe.access_log import set_up_logs
from firesteel.server.run import Server, bind, url_of
from firesteel.server.service import Service
from firesteel.version import find_version


def vllm_options() -> dict[str, Any]:
    """Returns annotated options for vLLM's flags, by parameter."""
    options: dict[str, Any] = {
        "enable_prefix_caching": _vllm_option(
            bool, "same as --prefix-caching", "--enable-prefix-caching/--no-enable-prefix-caching"
        ),
        "async_scheduling": _vllm_option(bool, "same as --run-ahead", "--async-scheduling/--no-async-scheduling"),
        "kv_cache_dtype": _vllm_option(str, f"same as --kv-dtype: {', '.join(KV_TYPES)}", "--kv-cache-dtype"),
    }
    for flag in ACCEPTED_FLAGS:
        accepted = f"accepted: {', '.join(flag.accepted)}" if flag.accepted else "accepted"
        kind = str if flag.accepted else bool
        options[flag.parameter] = _vllm_option(kind, f"{accepted}; {flag.meaning}", *flag.names)
    for name, reason in REFUSED_FLAGS.items():
        options[name.removeprefix("--").replace("-", "_")] = _vllm_option(str, f"refused: {reason}", name)
    return options


def _vllm_option(kind: type, help: str, *names: str) -> Any:
    return Annotated[kind | None, typer.Option(*names, help=help, rich_help_panel="flags of vLLM")]


@app.command()
@partial(with_options, parameter="vllm_flags", options=vllm_options())
@partial(with_settings, is_server=True)
def serve(
    settings: dict[str, Any],
    vllm_flags: dict[str, Any],
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="same as --model (default: kindling, built in)")
    ] = None,
) -> None:
    """Serve a model over the OpenAI API. Accepts the flags of a vLLM command line for gpt-oss."""
    settings, lines = translate(vllm_flags, settings)
    if checkpoint is not None and settings.setdefault("model", checkpoint) != checkpoint:
        raise UserError(f"two models given: {checkpoint} and --model {settings['model']}; give one of them")
    device = find_device(resolve(settings).config.model.device)
    defaults = find_defaults(settings, device)
    say(f"firesteel {find_version()}")
    for line in lines:
        say(line)
    if defaults.choices:
        Console(stderr=True).print(choice_table(defaults, device.name))
    asyncio.run(run(defaults.config))


async def run(config: Config) -> None:
    """Binds the port before the model is loaded, so that a wrong port fails at once."""
    directory = find_checkpoint(config.model.model)
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
