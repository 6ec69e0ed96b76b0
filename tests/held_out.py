"""Prompts that no part of Kindling, or of its drafters, was trained on."""

from firesteel.chat.harmony import Harmony
from firesteel.eval import encode_prompt, take
from firesteel.exam import EXAM, read_items

LEFT_OUT = "retrieval_long"  # minutes of prompts on a CPU


def encode_held_out(llm, per_family=1):
    """Returns the tokens of prompts of the exam: some of each family."""
    items = [item for item in take(read_items(EXAM), per_family) if item.family != LEFT_OUT]
    return [encode_prompt(Harmony(llm.tokenizer), llm, item) for item in items]
