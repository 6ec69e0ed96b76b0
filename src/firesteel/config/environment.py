"""Access to the process environment, which is read here only: what is shown, recorded and passed to children."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from firesteel.config.secrets import HIDDEN, hide_in_text, shown_value

PREFIX = "FIRESTEEL_"
REFERENCE_KEY = "LAB_REFERENCE_API_KEY"
PLUGIN_VARIABLE = "FIRESTEEL_VLLM"  # off: vLLM keeps its own gpt-oss; it has no flag, as vLLM parses the flags
# Variables that change how an engine runs.
ENGINE_VARIABLES = (
    r"(FIRESTEEL|CUDA|NVIDIA|NCCL|VLLM|SGL|SGLANG|TORCH|PYTORCH|TRITON|FLASHINFER|GGML|LLAMA|OMP|MKL|ONEDNN|HF)_"
    r"|PYTHON|PATH$|LD_LIBRARY_PATH$|LD_PRELOAD$|VIRTUAL_ENV$|LANG$"
)
# Variables recorded with a result, so that it can be reproduced.
RECORDED_VARIABLES = (
    r"(FIRESTEEL|VLLM|SGL|SGLANG|GGML|LLAMA|FLASHINFER|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|NCCL|OMP|MKL|KMP|GOMP|CUDA"
    r"|CUBLAS|CUDNN|ONEDNN|DNNL|HF|TRANSFORMERS|TOKENIZERS|NVIDIA|LD)_|PYTHON|VIRTUAL_ENV$"
)


def current(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    """Returns `environ`, or the environment of this process if it is None."""
    return os.environ if environ is None else environ


def find_user_cache(environ: Mapping[str, str] | None = None) -> Path | None:
    """Returns the user's cache folder (XDG base directories), or None if there is no home folder."""
    environ = current(environ)
    caches = Path(environ.get("XDG_CACHE_HOME", ""))
    if caches.is_absolute():
        return caches
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(home) / ".cache" if os.path.isabs(home) else None


def shown_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the variables recorded with results, ours and those of other engines, with secrets hidden."""
    environ = current(environ)
    names = sorted(name for name in environ if re.match(RECORDED_VARIABLES, name))
    return {name: HIDDEN if name.endswith("_TOKEN") else shown_value(name, environ[name]) for name in names}


def child_environment(extra: Mapping[str, str], *, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Returns the environment for a child process: this process's own, plus `extra`, minus `without`."""
    return {name: value for name, value in os.environ.items() if name not in without} | dict(extra)


def told_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the variables for a crash bundle: those that engines read, without any that may hold a secret."""
    environ = current(environ)
    names = sorted(name for name in environ if re.match(ENGINE_VARIABLES, name))
    kept = [name for name in names if not re.search(r"key|secret|passw|token|auth", name, re.I)]
    return {name: hide_in_text(environ[name]) for name in kept}


def find_reference_key(environ: Mapping[str, str] | None = None) -> str:
    """Returns the key for the lab's --reference-url. It is not a setting of ours, so it lacks our prefix."""
    return current(environ).get(REFERENCE_KEY, "")


def has_own_threads(environ: Mapping[str, str] | None = None) -> bool:
    """Returns whether OMP_NUM_THREADS sets the threads of torch on a CPU."""
    return bool(current(environ).get("OMP_NUM_THREADS"))


def wants_colour(environ: Mapping[str, str] | None = None) -> bool:
    """Returns whether a terminal may be written to in colour: NO_COLOR (no-color.org) is not set."""
    return not current(environ).get("NO_COLOR")


def find_plugin_switch(environ: Mapping[str, str] | None = None) -> str:
    """Returns the text of the variable that switches the vLLM plugin on or off (default: on)."""
    return current(environ).get(PLUGIN_VARIABLE, "on")


def find_allowed_plugins(environ: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """Returns the plugins that vLLM may load by its variable VLLM_PLUGINS; None: all."""
    text = current(environ).get("VLLM_PLUGINS")
    return None if text is None else tuple(text.split(","))
