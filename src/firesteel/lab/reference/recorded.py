"""A reference that was recorded once: its file, and the answers in it.

It holds token ids, so that a later server is asked for the same tokens, whoever encodes its texts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.lab.codec import from_json, to_json
from firesteel.lab.reference.reference import ReferenceFailed
from firesteel.lab.verdict import Verdict
from firesteel.untrusted.json_file import read_object

FORMAT = 1  # rises if an older version of firesteel cannot read the file
LARGEST_BYTES = 256 << 20
CURE = "record it again with firesteel lab reference"
PUBLISHED = re.compile(r"gpt-?oss-?(\d+b)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedText:
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of every token but the first


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedContinuation:
    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]  # the greedy continuation
    text: str
    logprobs: tuple[float, ...]
    margins: tuple[float | None, ...]  # nats between the two most likely tokens; None if they were not ranked


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReference:
    """The answers of a server, by the tokens that it was asked for."""

    format: int = FORMAT
    model: str  # as the server names it
    checkpoint: str  # as --model names it
    engine_version: str = ""  # empty if the server does not state it
    url: str = ""
    time_utc: str
    firesteel: str
    float32: bool  # it is known to compute in float32
    coherence: str  # the verdict on its own answers
    probe_ids: tuple[int, ...]  # the tokens of texts.PROBE
    prompts_sha256: str
    texts: tuple[RecordedText, ...]
    continuations: tuple[RecordedContinuation, ...]

    @property
    def name(self) -> str:
        version = f", {self.engine_version}" if self.engine_version else ""
        doubt = "" if self.coherence == Verdict.PASSED.value else ", whose own answers were not coherent"
        return f"{self.model} as recorded on {self.time_utc}{version}{doubt}"

    @property
    def model_keys(self) -> set[str]:
        return {key_of(name) for name in (self.model, self.checkpoint) if name}

    def is_float32(self) -> bool:
        return self.float32

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        asked = tuple(token_ids)
        for text in self.texts:
            if text.token_ids == asked:
                return list(text.logprobs)
        raise ReferenceFailed(f"the reference, {self.name}, does not have a text of these {len(asked)} tokens")

    def continue_greedily(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        known = {continuation.prompt: continuation for continuation in self.continuations}
        return [list(known[tuple(prompt)].token_ids[:count]) for prompt in prompts]

    def margin(self, token_ids: Sequence[int]) -> float | None:
        asked = tuple(token_ids)
        for continuation in self.continuations:
            length = len(continuation.prompt)
            after = asked[length:]
            if asked[:length] == continuation.prompt and after == continuation.token_ids[: len(after)]:
                return continuation.margins[len(after)]
        return None

    def choose_texts(self, count: int | None) -> list[list[int]]:
        return [list(text.token_ids) for text in self.texts[:count]]

    def choose_prompts(self, count: int) -> list[list[int]]:
        """Returns prompts spread over all of them."""
        step = max(1, len(self.continuations) // count)
        return [list(continuation.prompt) for continuation in self.continuations[::step][:count]]


def key_of(model: str) -> str:
    """Returns what two names of one model share: the size of a published one, else the last part of the path."""
    lower = model.lower()
    if published := PUBLISHED.search(lower):
        return f"gpt-oss-{published[1]}"
    return lower.rstrip("/").rpartition("/")[2].removesuffix(".gguf")


def hash_prompts(reference: RecordedReference) -> str:
    asked = [
        [text.token_ids for text in reference.texts],
        [continuation.prompt for continuation in reference.continuations],
    ]
    return _hash(asked)


def with_hashes(reference: RecordedReference) -> dict[str, Any]:
    """Returns the content of the file: the reference and a hash that shows damage."""
    content: dict[str, Any] = to_json(replace(reference, prompts_sha256=hash_prompts(reference)))
    return content | {"sha256": _hash(content)}


def read_reference(path: Path) -> RecordedReference:
    """Reads a file; raises UserError if it is missing, damaged, of another version or something else."""
    what = f"--reference {path}"
    content = read_object(path, UserError, CURE, largest=LARGEST_BYTES)
    stated = content.pop("sha256", None)
    if stated is None or "continuations" not in content:
        raise UserError(f"{what} is not a recorded reference: {CURE}")
    if content.get("format") != FORMAT:
        raise UserError(
            f"{what} has format {content.get('format')!r}, this version of firesteel reads {FORMAT}: {CURE}"
        )
    if stated != _hash(content):
        raise UserError(f"{what} was changed or damaged: its content does not have the hash that it states: {CURE}")
    reference = from_json(RecordedReference, content, what)
    check_lengths(reference, what)
    return reference


def check_lengths(reference: RecordedReference, what: str) -> None:
    is_whole = (
        bool(reference.texts)
        and bool(reference.continuations)
        and all(len(text.logprobs) == len(text.token_ids) - 1 for text in reference.texts)
        and all(len(item.margins) == len(item.token_ids) for item in reference.continuations)
    )
    if not is_whole:
        raise UserError(f"{what} is incomplete: texts without log-probabilities, or tokens without margins: {CURE}")


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
