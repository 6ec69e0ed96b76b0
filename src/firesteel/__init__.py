"""firesteel serves gpt-oss from its MXFP4 weights. These are its public names; all others are internal."""

import warnings
from typing import TYPE_CHECKING

from firesteel.config import Config
from firesteel.errors import UserError
from firesteel.llm import LLM
from firesteel.types import Generation, SamplingParams

__all__ = ["LLM", "Config", "Generation", "SamplingParams", "UserError"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> type:
        """Returns `Generation` under its former name, with a warning; the next version drops the former name."""
        if name == "Completion":
            warnings.warn("firesteel.Completion is now firesteel.Generation", FutureWarning, stacklevel=2)
            return Generation
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
