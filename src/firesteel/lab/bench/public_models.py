"""Names under which files and repositories hold the public models."""

from __future__ import annotations

import re
from pathlib import Path

# Any other word in a name may mean other weights.
PUBLIC = re.compile(
    r"(?:openai[-_])?(?P<name>gpt-oss-(?:20|120)b)"
    r"(?:[-_.](?:mxfp4|gguf|bf16|f16|q8_0|\d{5}-of-\d{5}))*",
    re.IGNORECASE,
)


def find_public_name(model: str) -> str:
    """Returns gpt-oss-20b or gpt-oss-120b, or an empty string if the name is that of another model."""
    match = PUBLIC.fullmatch(Path(model).name.removesuffix(".gguf"))
    return "" if match is None else match["name"].lower()
