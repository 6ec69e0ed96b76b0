"""Checkpoints by name: in the local Hugging Face cache, and fetched from the hub into it."""

from firesteel.hub.checkpoint import find_checkpoint
from firesteel.hub.draft_model import find_draft_model
from firesteel.hub.names import BUILT_IN, SHORT_NAMES

__all__ = ["BUILT_IN", "SHORT_NAMES", "find_checkpoint", "find_draft_model"]
