"""Command lines that start each engine as a server, and what --debug adds to them."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from firesteel.config import PLUGIN_VARIABLE, list_keys, resolve
from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.lab.servers.container.compose import (
    compose_words,
    find_service_address,
    is_compose,
    make_launch,
    parse_service,
    read_service,
    service_command,
)
from firesteel.lab.servers.container.launch import ContainerLaunch, RunLaunch
from firesteel.lab.servers.container.words import find_address, is_run, parse_run
from firesteel.lab.servers.supervisor import ServerCommand

HOST = "127.0.0.1"
# Engine -> pattern of the program or module that starts it.
PROGRAMS = {
    "firesteel": "firesteel",
    "vllm": r"vllm(\..+)?",
    "sglang": r"sglang(\..+)?",
    "llamacpp": "llama-server",
}
# Engine -> pattern of the last part of an image's name.
IMAGES = {"firesteel": "firesteel", "vllm": "vllm", "sglang": "sglang", "llamacpp": r"llama[._-]?cpp"}
VLLM, VLLM_WITH_PLUGIN, SGLANG, LLAMACPP = "vllm", "vllm+firesteel", "sglang", "llamacpp"
KINDS = ("firesteel", VLLM, VLLM_WITH_PLUGIN, SGLANG, LLAMACPP)
# vLLM loads our plugin wherever it is installed. Each kind says which gpt-oss it measures; a command line decides
# for itself, and contains WITH_PLUGIN if it means the plugin, as in `env FIRESTEEL_VLLM=on vllm serve`.
PLUGIN_SWITCHES = {VLLM: {PLUGIN_VARIABLE: "off"}, VLLM_WITH_PLUGIN: {PLUGIN_VARIABLE: "on"}}
WITH_PLUGIN = f"{PLUGIN_VARIABLE}=on"
LLAMACPP_LOG = ("--verbosity", "4")  # below it llama-server does not say where the layers are; the last one counts
# Blocking launches, so that a fault is reported where it happens; C++ stacks; logs of every kernel choice.
DEBUG = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
    "TORCH_CPP_LOG_LEVEL": "INFO",
    "VLLM_LOGGING_LEVEL": "DEBUG",
    "SGLANG_LOG_LEVEL": "debug",
    "NCCL_DEBUG": "INFO",
    "FLASHINFER_LOGLEVEL": "3",
    "GGML_CUDA_DEBUG": "1",
}
DEBUG_FLAGS = {
    "firesteel": ("--enforce-eager", "--no-run-ahead"),
    VLLM: ("--enforce-eager",),
    VLLM_WITH_PLUGIN: ("--enforce-eager",),
    "sglang": ("--disable-cuda-graph",),
    "llamacpp": ("--verbose",),
}


def make_command(
    engine: str, *, model: str, port: int, folder: Path, flags: Sequence[str] = (), debug: bool = False
) -> ServerCommand:
    """Builds a command.

    `engine` is one of KINDS, a command line with {port} and optionally {model}, `docker run ...` or a service of a
    compose file.
    """
    kind = find_kind(engine)
    added = DEBUG_FLAGS.get(kind, ()) if debug else ()
    if is_container(engine):
        words = fill_words(engine, model=model, port=port)
        return make_container_command(words, kind=kind, flags=(*added, *flags), folder=folder, debug=debug)
    return ServerCommand(
        words=(*make_words(engine, model=model, port=port, folder=folder), *added, *flags),
        url=f"http://{HOST}:{port}",
        name=engine if engine in KINDS else "server",
        environment=fixed_environment(engine, debug=debug),
    )


def fixed_environment(engine: str, *, debug: bool) -> dict[str, str]:
    """Returns the variables that an engine is always started with."""
    return {**(DEBUG if debug else {}), **PLUGIN_SWITCHES.get(engine, {})}


def make_words(engine: str, *, model: str, port: int, folder: Path) -> Sequence[str]:
    at = ("--host", HOST, "--port", str(port))
    if engine == "firesteel":
        crashes = ("--crash-dir", str(folder / "crashes"))
        return (sys.executable, "-m", "firesteel", "serve", "--model", model, *at, *crashes)
    if engine in PLUGIN_SWITCHES:
        return ("vllm", "serve", model, *at)
    if engine == "sglang":
        return ("python3", "-m", "sglang.launch_server", "--model-path", model, *at)
    if engine == "llamacpp":
        return ("llama-server", "--model", model, *at, *LLAMACPP_LOG)
    if is_container(engine):
        words = fill_words(engine, model=model, port=port)
        return make_container_command(words, kind=find_kind(engine), folder=folder).words
    if "{port}" not in engine:
        raise UserError(
            f"--engine {engine!r} is neither one of {', '.join(KINDS)}, nor `docker run ...`, nor "
            "compose:FILE:SERVICE, nor a command line with {port}, such as 'my-server --port {port} {model}'"
        )
    return fill_words(engine, model=model, port=port)


def fill_words(engine: str, *, model: str, port: int) -> tuple[str, ...]:
    return tuple(word.replace("{port}", str(port)).replace("{model}", model) for word in split_words(engine))


def is_container(engine: str) -> bool:
    return is_compose(engine) or (engine not in KINDS and is_run(split_words(engine)))


def make_container_command(
    words: Sequence[str], *, kind: str, flags: Sequence[str] = (), folder: Path, debug: bool = False
) -> ServerCommand:
    """Builds a command from the words of `docker run`, or from the one word compose:FILE:SERVICE."""
    launch: ContainerLaunch
    if is_compose(words[0]):
        service = parse_service(words[0])
        launch = make_launch(service, flags, folder)
        host, port = find_service_address(read_service(service), service.name, kind)
        shown = (*compose_words(launch.runtime, service.file), "up", "--detach", service.name)
    else:
        run = parse_run([*words, *flags])
        launch, shown = RunLaunch(run=run), (*words, *flags)
        host, port = find_address(run, kind)
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return ServerCommand(words=shown, url=url, environment=DEBUG if debug else {}, container=launch)


def split_words(engine: str) -> list[str]:
    try:
        return shlex.split(engine)
    except ValueError as error:
        raise UserError(f"--engine {engine!r} is not a valid command line: {error}; close every quote") from error


def find_model(engine: str, model: str) -> str:
    """Returns the model as an engine expects it: other engines need the folder of a checkpoint found by name."""
    if engine == "firesteel":
        return model
    try:
        return str(find_checkpoint(model))
    except UserError:
        return model


def find_key(flags: Sequence[str], *, engine: str = "") -> str:
    """Returns the API key that the server expects: of its command line, or the inherited FIRESTEEL_API_KEY."""
    own = find_program_words(engine) if is_compose(engine) else split_words(engine)
    words = [word for flag in (*own, *flags) for word in flag.split("=", 1)]
    given = [value for name, value in itertools.pairwise(words) if name == "--api-key"]
    files = [value for name, value in itertools.pairwise(words) if name == "--api-key-file"]
    server = resolve({"api_key_file": files[-1] if files else None}).config.server
    return given[-1] if given else next(iter(list_keys(server.api_key, server.api_key_file)), "")


def find_kind(engine: str) -> str:
    """Returns the engine whose rules apply: the one whose program or module is started, or "other"."""
    if engine in KINDS:
        return engine
    words = find_program_words(engine)
    names = [Path(word).name for word in words]
    kinds = (kind for kind, pattern in PROGRAMS.items() if any(re.fullmatch(pattern, name) for name in names))
    kind = next(kinds, None) or (find_image_kind(words[0]) if is_container(engine) else "other")
    return VLLM_WITH_PLUGIN if kind == VLLM and WITH_PLUGIN in split_words(engine) else kind


def find_program_words(engine: str) -> Sequence[str]:
    """Returns the words that name the program: of a container, its image and the command inside."""
    if is_compose(engine):
        content = read_service(parse_service(engine))
        return [str(content.get("image") or ""), *service_command(content)]
    words = split_words(engine)
    if not is_run(words):
        return words
    run = parse_run(words)
    return [run.image, *run.values("entrypoint"), *run.command]


def find_image_kind(image: str) -> str:
    """Returns the engine that an image is named after, such as lmsysorg/sglang:v0.5."""
    name = image.rpartition("/")[2].partition("@")[0].partition(":")[0]
    return next((kind for kind, pattern in IMAGES.items() if re.search(pattern, name)), "other")
