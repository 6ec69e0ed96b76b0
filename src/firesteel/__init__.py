"""firesteel serves gpt-oss from its MXFP4 weights. These are its public names; all others are internal.

They are imported when they are used: vLLM imports this package in each of its processes, for every model.
"""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.config import Config
    from firesteel.errors import UserError
    from firesteel.llm import LLM
    from firesteel.types import Generation, SamplingParams

__all__ = ["LLM", "Config", "Generation", "SamplingParams", "UserError"]
HOMES = {
    "LLM": "firesteel.llm",
    "Generation": "firesteel.types",
    "Config": "firesteel.config",
    "SamplingParams": "firesteel.types",
    "UserError": "firesteel.errors",
}
RENAMED = {"Completion": "Generation"}  # former names, which the next version drops


def __getattr__(name: str) -> Any:
    if name in RENAMED:
        warnings.warn(f"firesteel.{name} is now firesteel.{RENAMED[name]}", FutureWarning, stacklevel=2)
    home = HOMES.get(RENAMED.get(name, name))
    if home is None:
        raise AttributeError(f"module 'firesteel' has no attribute {name!r}")
    return getattr(importlib.import_module(home), RENAMED.get(name, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
