"""The o200k vocabulary as a tokenizer.json, openai-harmony to compare with, and random tools."""

from __future__ import annotations

import base64
import os
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from firesteel.chat.harmony import Harmony
from firesteel.chat.tokenizer import _BYTE_OF_CHARACTER, Tokenizer
from firesteel.chat.tools import Tool

DATA = Path(__file__).parent.parent / "data"
ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K_SPLIT = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDINGS}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDINGS}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
NAMED = {
    199998: "startoftext",
    199999: "endoftext",
    200002: "return",
    200003: "constrain",
    200005: "channel",
    200006: "start",
    200007: "end",
    200008: "message",
    200012: "call",
}
WORDS = [
    "a",
    "b c",
    "null",
    "x\ny",
    "",
    "é",
    'd"q',
    "<|end|>",
    "tail ",
    "\r\nz",
    "default: 3",
    "// c",
    "T{}",
    "日本",
]
FLOATS = [1.0, -0.0, 2.5, 1e-5, 1.25e-5, -1e-5, 1e-6, 1e16, 1.5e16, 1e15, 123.75, 1e22, 1e-4, 1e300, -3e-9]
INTEGERS = [0, 3, -7, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**30]
TYPES = ["string", "number", "integer", "boolean", "null", "array", "object", "any"]


class SchemaMaker:
    """Random JSON schemas: mostly sensible, now and then malformed, always JSON."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def word(self) -> str:
        return self.rng.choice(WORDS)

    def value(self, depth: int = 0) -> Any:
        kind = self.rng.randrange(8 if depth < 2 else 6)
        if kind == 6:
            return [self.value(depth + 1) for _ in range(self.rng.randrange(3))]
        if kind == 7:
            return {self.word(): self.value(depth + 1) for _ in range(self.rng.randrange(3))}
        number = self.rng.choice([*INTEGERS, *FLOATS])
        return self.rng.choice([self.word(), number, number, True, None, "s"])

    def values(self) -> list[Any]:
        makers = self.rng.choices([self.value, self.word], weights=[3, 7], k=self.rng.randrange(4))
        return [make() for make in makers]

    def types(self) -> list[Any]:
        return self.rng.choices([*TYPES, 1, ""], k=self.rng.randrange(4))

    def schemas(self, depth: int) -> list[Any]:
        return [self.schema(depth) for _ in range(self.rng.randrange(4))]

    def properties(self, depth: int) -> dict[str, Any]:
        names = [self.rng.choice("abcdefgh") + self.word() * (self.rng.random() < 0.2) for _ in range(4)]
        return {name: self.schema(depth) for name in names[: self.rng.randrange(5)]}

    def schema(self, depth: int = 0) -> Any:
        rng = self.rng
        if rng.random() < 0.02:
            return self.value()
        schema: dict[str, Any] = {}

        def maybe(key: str, chance: float, make: Any) -> None:
            if rng.random() < chance:
                schema[key] = make() if rng.random() < 0.97 else self.value()

        maybe("type", 0.8, lambda: rng.choice([*TYPES, "object", "object", "string", "array"]))
        maybe("type", 0.1, self.types)
        maybe("title", 0.2, self.word)
        maybe("description", 0.3, self.word)
        maybe("nullable", 0.2, lambda: rng.random() < 0.7)
        maybe("default", 0.25, self.value)
        maybe("enum", 0.2, self.values)
        maybe("examples", 0.15, self.values)
        if depth < 4:
            kind = schema.get("type")
            maybe("properties", 0.9 if kind == "object" else 0.05, lambda: self.properties(depth + 1))
            maybe("items", 0.85 if kind == "array" else 0.05, lambda: self.schema(depth + 1))
            maybe("oneOf", 0.15, lambda: self.schemas(depth + 1))
            maybe("anyOf", 0.05, lambda: self.schemas(depth + 1))
        names = schema["properties"] if isinstance(schema.get("properties"), dict) else {}
        maybe("required", 0.5, lambda: [name for name in names if rng.random() < 0.5])
        return dict(rng.sample(list(schema.items()), len(schema)))

    def tools(self) -> list[Tool]:
        tools = []
        for index in range(self.rng.randrange(1, 4)):
            parameters = self.schema()
            if not isinstance(parameters, dict) or self.rng.random() < 0.05:
                parameters = None
            tools.append(Tool(name=f"tool_{index}", description=self.word(), parameters=parameters))
        return tools


def special_tokens() -> list[str]:
    return [f"<|{NAMED.get(token_id, f'reserved_{token_id}')}|>" for token_id in range(199998, 201088)]


def read_ranks() -> dict[bytes, int]:
    lines = (DATA / "o200k_base.tiktoken").read_bytes().split()
    return {base64.b64decode(token): int(rank) for token, rank in zip(lines[::2], lines[1::2], strict=True)}


def build_o200k() -> tokenizers.Tokenizer:
    """Builds a tokenizer whose merges are all splits of a token in two, at the token's rank, as tiktoken merges."""
    ranks = read_ranks()
    letter = {byte: character for character, byte in _BYTE_OF_CHARACTER.items()}
    spelled = {token: "".join(map(letter.__getitem__, token)) for token in ranks}
    merges = []
    for token in ranks:  # the file is in rank order
        splits = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs = [(left, right) for left, right in splits if left in ranks and right in ranks]
        pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(spelled[left], spelled[right]) for left, right in pairs]
    vocab = {spelled[token]: rank for token, rank in ranks.items()}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    split = pre_tokenizers.Split(tokenizers.Regex(O200K_SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(special_tokens())
    return backend


@pytest.fixture(scope="session")
def o200k_directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("o200k")
    build_o200k().save(str(directory / "tokenizer.json"), pretty=False)
    return directory


@pytest.fixture(scope="session")
def tokenizer(o200k_directory):
    return Tokenizer.load(o200k_directory)


@pytest.fixture(scope="session")
def harmony(tokenizer):
    return Harmony(tokenizer)


@pytest.fixture(scope="session")
def library():
    """The encoding of openai-harmony, which reads its vocabulary from the directory that the environment names."""
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(DATA)
    openai_harmony = pytest.importorskip("openai_harmony")
    return openai_harmony.load_harmony_encoding("HarmonyGptOss")


@pytest.fixture(scope="session")
def schema_maker():
    return SchemaMaker
