"""firesteel serves gpt-oss from its MXFP4 weights. These are its public names; all others are internal."""

from firesteel.config import Config
from firesteel.errors import UserError
from firesteel.llm import LLM
from firesteel.types import Completion, SamplingParams

__all__ = ["LLM", "Completion", "Config", "SamplingParams", "UserError"]
