"""Access to the process environment, which is read here only: what is shown, recorded and passed to children."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PREFIX = "FIRESTEEL_"
REFERENCE_KEY = "LAB_REFERENCE_API_KEY"
PLUGIN_VARIABLE = "FIRESTEEL_VLLM"  # off: vLLM keeps its own gpt-oss; it has no flag, as vLLM parses the flags
HIDDEN = "(hidden)"  # stands for a secret wherever settings are shown or recorded
# Variables that change how an engine runs.
ENGINE_VARIABLES = (
    r"(FIRESTEEL|CUDA|NVIDIA|NCCL|VLLM|SGL|SGLANG|TORCH|PYTORCH|TRITON|FLASHINFER|GGML|LLAMA|OMP|MKL|ONEDNN|HF)_"
    r"|PYTHON|PATH$|LD_LIBRARY_PATH$|LD_PRELOAD$|VIRTUAL_ENV$|LANG$"
)
# Names of secrets. A name that ends in "token" may also mean a token of text; TEXT_TOKENS tells them apart.
SECRETS = (
    r"(key|secret|passw(or)?d|passphrase|credential|(auth|access|api|bearer|hf|hub|refresh)[_-]?token)s?$|^-hft$"
)
TEXT_TOKENS = (
    r"(a|audio|begin|bos|cls|decode|draft|end|eos|first|generated|image|input|last|mask|max|min|new|next|num|output|"
    r"pad|per|prefix|prompt|sep|special|start|stop|think|tool|unk|video)"
)
WORDS = re.compile(r"""\s+|(?:'[^']*'|"[^"]*"|\S)+""")  # words of a command line, and the space between them

# Variables recorded with a result, so that it can be reproduced.
RECORDED_VARIABLES = (
    r"(FIRESTEEL|VLLM|SGL|SGLANG|GGML|LLAMA|FLASHINFER|TORCH|PYTORCH|TRITON|NCCL|OMP|MKL)_"
    r"|(CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|CUBLAS_WORKSPACE_CONFIG|NVIDIA_TF32_OVERRIDE)$"
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
    return {name: HIDDEN if is_secret(name) or name.endswith("_TOKEN") else environ[name] for name in names}


def child_environment(extra: Mapping[str, str], *, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Returns the environment for a child process: this process's own, plus `extra`, minus `without`."""
    return {name: value for name, value in os.environ.items() if name not in without} | dict(extra)


def told_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the variables for a crash bundle: those that engines read, without any that may hold a secret."""
    environ = current(environ)
    names = sorted(name for name in environ if re.match(ENGINE_VARIABLES, name))
    return {name: environ[name] for name in names if not re.search(r"key|secret|passw|token|auth", name, re.I)}


def shown_value(name: str, value: Any) -> Any:
    """Returns a setting's value as it may be shown."""
    return HIDDEN if is_secret(name) and value else value


def find_reference_key(environ: Mapping[str, str] | None = None) -> str:
    """Returns the key for the lab's --reference-url. It is not a setting of ours, so it lacks our prefix."""
    return current(environ).get(REFERENCE_KEY, "")


def find_plugin_switch(environ: Mapping[str, str] | None = None) -> str:
    """Returns the text of the variable that switches the vLLM plugin on or off (default: on)."""
    return current(environ).get(PLUGIN_VARIABLE, "on")


def find_allowed_plugins(environ: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """Returns the plugins that vLLM may load by its variable VLLM_PLUGINS; None: all."""
    text = current(environ).get("VLLM_PLUGINS")
    return None if text is None else tuple(text.split(","))


def is_secret(name: str) -> bool:
    """Returns whether a flag, variable or field of this name holds a secret."""
    if re.search(SECRETS, name, re.IGNORECASE):
        return True
    is_token = re.search(r"(^|[_-])token$", name, re.IGNORECASE)
    return is_token is not None and not re.search(rf"(^|[_-]){TEXT_TOKENS}[_-]token$", name, re.IGNORECASE)


def hide_secrets(words: Iterable[str]) -> list[str]:
    """Hides secrets in a command line: --flag value, --flag=value, NAME=value, and the same in quoted commands."""
    shown = []
    hide_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        name_is_secret = not re.search(r"\s", name) and is_secret(name)
        if hide_next:
            shown.append(HIDDEN)
        else:
            shown.append(f"{name}={HIDDEN}" if name_is_secret and equals else _hide_inside(word))
        hide_next = name_is_secret and not equals and name.startswith("-")
    return shown


def _hide_inside(word: str) -> str:
    """Hides secrets in a command line given as one word, as `sh -c` takes it; all other text stays as it is."""
    parts = WORDS.findall(word)
    if len(parts) == 1 and word[0] in "'\"" and word[-1] == word[0]:
        return word[0] + _hide_inside(word[1:-1]) + word[0]
    if len(parts) < 2:
        return word
    shown = iter(hide_secrets(part for part in parts if not part.isspace()))
    return "".join(part if part.isspace() else next(shown) for part in parts)
