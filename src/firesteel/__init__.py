"""firesteel serves gpt-oss from its MXFP4 weights. These are its public names; all others are internal.

They are imported when they are used: vLLM imports this package in each of its processes, for every model.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.config import Config
    from firesteel.errors import UserError
    from firesteel.llm import LLM
    from firesteel.types import Completion, SamplingParams

__all__ = ["LLM", "Completion", "Config", "SamplingParams", "UserError"]
HOMES = {
    "LLM": "firesteel.llm",
    "Completion": "firesteel.types",
    "Config": "firesteel.config",
    "SamplingParams": "firesteel.types",
    "UserError": "firesteel.errors",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'firesteel' has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
