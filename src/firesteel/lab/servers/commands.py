"""How each engine is started as a server, and what --debug adds; starts nothing."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from firesteel.config import resolve
from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.lab.servers.supervisor import ServerCommand

HOST = "127.0.0.1"
# Names of programs and modules, by whose rules they fall under.
PROGRAMS = {
    "firesteel": "firesteel", "vllm": r"vllm(\..+)?", "sglang": r"sglang(\..+)?", "llamacpp": "llama-server",
}  # fmt: skip
KINDS = ("firesteel", "vllm", "sglang", "llamacpp")
# Launches one after the other, so that a fault is named where it happens; C++ stacks; every choice of a kernel.
DEBUG = {
    "CUDA_LAUNCH_BLOCKING": "1", "TORCH_SHOW_CPP_STACKTRACES": "1", "TORCH_CPP_LOG_LEVEL": "INFO",
    "VLLM_LOGGING_LEVEL": "DEBUG", "SGLANG_LOG_LEVEL": "debug", "NCCL_DEBUG": "INFO",
    "FLASHINFER_LOGLEVEL": "3", "GGML_CUDA_DEBUG": "1",
}  # fmt: skip
DEBUG_FLAGS = {
    "firesteel": ("--enforce-eager", "--no-run-ahead"), "vllm": ("--enforce-eager",),
    "sglang": ("--disable-cuda-graph",), "llamacpp": ("--verbose",),
}  # fmt: skip


def make_command(
    engine: str, *, model: str, port: int, folder: Path, flags: Sequence[str] = (), debug: bool = False
) -> ServerCommand:
    """`engine` is one of KINDS or a command line in which {port} stands, and {model} where it is wanted."""
    added = DEBUG_FLAGS.get(name_kind(engine), ()) if debug else ()
    return ServerCommand(
        words=(*find_words(engine, model=model, port=port, folder=folder), *added, *flags),
        url=f"http://{HOST}:{port}", name=engine if engine in KINDS else "server",
        environment=DEBUG if debug else {},
    )  # fmt: skip


def find_words(engine: str, *, model: str, port: int, folder: Path) -> tuple[str, ...]:
    at = ("--host", HOST, "--port", str(port))
    if engine == "firesteel":
        crashes = ("--crash-dir", str(folder / "crashes"))
        return (sys.executable, "-m", "firesteel", "serve", "--model", model, *at, *crashes)
    if engine == "vllm":
        return ("vllm", "serve", model, *at)
    if engine == "sglang":
        return ("python3", "-m", "sglang.launch_server", "--model-path", model, *at)
    if engine == "llamacpp":
        return ("llama-server", "--model", model, *at)
    if "{port}" not in engine:
        raise UserError(
            f"--engine {engine!r} is none of {', '.join(KINDS)}, nor a command line with {{port}} in it, as "
            "'my-server --port {port} {model}'"
        )
    return tuple(word.replace("{port}", str(port)).replace("{model}", model) for word in split(engine))


def split(engine: str) -> list[str]:
    """A command line into its words."""
    try:
        return shlex.split(engine)
    except ValueError as error:
        raise UserError(f"--engine {engine!r} is no command line: {error}; quotes go in pairs") from error


def find_model(engine: str, model: str) -> str:
    """As other engines know it: the folder of a checkpoint that we find by name."""
    if engine == "firesteel":
        return model
    try:
        return str(find_checkpoint(model))
    except UserError:
        return model


def find_key(flags: Sequence[str], *, engine: str = "") -> str:
    """That the server asks for: of its command line, or FIRESTEEL_API_KEY, which it has from us."""
    words = [word for flag in (*shlex.split(engine), *flags) for word in flag.split("=", 1)]
    given = [value for name, value in itertools.pairwise(words) if name == "--api-key"]
    return given[-1] if given else resolve().config.server.api_key


def name_kind(engine: str) -> str:
    """Whose rules a command line falls under: the engine whose program or module it starts, or "other"."""
    if engine in KINDS:
        return engine
    names = [Path(word).name for word in split(engine)]
    found = (kind for kind, pattern in PROGRAMS.items() if any(re.fullmatch(pattern, name) for name in names))
    return next(found, "other")
