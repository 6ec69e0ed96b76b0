"""The files of a checkpoint that firesteel needs, by name."""

from __future__ import annotations

import re
from collections.abc import Collection

from firesteel.errors import UserError

# In the order of fetching: what tells the model from others comes first, weights last.
NAMES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "tokenizer.json",
)
REQUIRED = ("config.json", "tokenizer.json")
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD = re.compile(r"[\w.-]{1,100}-\d{5}-of-\d{5}\.safetensors", re.ASCII)
CURE = "check the name, or choose another repository, such as openai/gpt-oss-20b"


def choose_files(names: Collection[str], repository: str) -> list[str]:
    """Returns the needed files among `names`, in the order of fetching; raises UserError if some are missing."""
    if missing := [name for name in REQUIRED if name not in names]:
        raise UserError(f"{repository} has no {missing[0]}, so firesteel could not serve it: {CURE}")
    shards = sorted(name for name in names if SHARD.fullmatch(name)) if INDEX in names else []
    if not shards and SINGLE not in names:
        raise UserError(f"{repository} has neither {SINGLE} nor {INDEX} with its shards: {CURE}")
    return [*(name for name in NAMES if name in names), *([INDEX, *shards] if shards else [SINGLE])]
