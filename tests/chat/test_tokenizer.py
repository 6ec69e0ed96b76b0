"""The tokenizer with the o200k vocabulary: equal to that of openai-harmony, lossless, injection-safe."""

from __future__ import annotations

import json
import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from firesteel.chat.tokenizer import Tokenizer, TokenizerError
from firesteel.errors import RequestError

PIECES = [
    "hello",
    " World",
    "don't",
    "IT'LL",
    "\u017f'S",
    "\uff11\uff12",
    "12345",
    "\n",
    "\r\n",
    "  ",
    "\t",
    "/",
    "//\n",
    "é",
    "e\u0301",
    "_x",
    "…",
    "½",
    "Ⅷ",
    "日本語",
    "ไทย",
    "🙂",
    "👩‍🚀",
    "ǅ",
    "\u00a0",
    "\u200b",
    "\x00",
    "\x7f",
    "<|",
    "|>",
    '{"a":1}',
    "<|end|>",
    "<|start|>assistant",
    "<|reserved_200000|>",
    "\ufffd",
    "العربية",
    "ß",
    "'re",
]


def random_text(rng: random.Random) -> str:
    def character() -> str:
        point = rng.choice([rng.randrange(128), rng.randrange(0x3000), rng.randrange(0x110000)])
        return "?" if 0xD800 <= point < 0xE000 else chr(point)

    size = rng.randrange(40)
    return "".join(rng.choice(PIECES) if rng.random() < 0.6 else character() for _ in range(size))


def random_ids(rng: random.Random) -> list[int]:
    """Returns ids in any order, so that some characters are cut and some bytes are invalid."""
    return [rng.choice([rng.randrange(256), rng.randrange(201088)]) for _ in range(rng.randrange(30))]


def assert_same_text(tokenizer, library, count: int) -> None:
    rng = random.Random(0)
    for _ in range(count):
        text = random_text(rng)
        assert tokenizer.encode(text) == library.encode(text, disallowed_special=()), repr(text)


def test_encodes_as_openai_harmony(tokenizer, library):
    assert_same_text(tokenizer, library, 1000)


@pytest.mark.slow
def test_encodes_as_openai_harmony_at_length(tokenizer, library):
    assert_same_text(tokenizer, library, 50_000)


def test_special_tokens_have_openai_ids(tokenizer, library):
    assert tokenizer.vocab_size == 201088
    beyond_the_embedding = {"<|reserved_201088|>"}
    assert set(tokenizer.special_ids) == library.special_tokens_set - beyond_the_embedding
    every_token = "".join(tokenizer.special_ids)
    assert [*tokenizer.special_ids.values()] == library.encode(every_token, allowed_special="all")


def test_every_token_spells_as_openai_harmony(tokenizer, library):
    for token_id in range(tokenizer.vocab_size):
        assert tokenizer.token_bytes(token_id) == bytes(library._inner.decode_bytes([token_id])), token_id


def test_decodes_any_ids_as_openai_harmony(tokenizer, library):
    rng = random.Random(1)
    for _ in range(1000):
        token_ids = random_ids(rng)
        assert tokenizer.decode(token_ids) == library.decode(token_ids)


@settings(max_examples=300, deadline=None)
@given(text=st.text())
def test_round_trip_of_any_text(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_batch_equals_one_by_one(tokenizer):
    rng = random.Random(2)
    texts = [random_text(rng) for _ in range(50)]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch([]) == []


def test_special_strings_in_text_stay_text(tokenizer):
    special_ids = set(tokenizer.special_ids.values())
    for token in tokenizer.special_ids:
        token_ids = tokenizer.encode(f"a{token}b {token}")
        assert not special_ids & set(token_ids)
        assert tokenizer.decode(token_ids) == f"a{token}b {token}"


def test_lone_surrogates_become_replacement_characters(tokenizer):
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")
    assert tokenizer.encode("\ud83d\ude42") == tokenizer.encode("🙂")


def test_text_that_the_backend_cannot_split_is_a_request_error(tokenizer):
    """Its regular expressions give up after ten million steps, and the library panics."""
    with pytest.raises(RequestError, match="cannot be tokenized"):
        tokenizer.encode(" " * 11_000_000)
    assert tokenizer.decode(tokenizer.encode("and goes on")) == "and goes on"


def test_ids_without_token_decode_to_replacement(tokenizer):
    assert tokenizer.decode([tokenizer.vocab_size, -1]) == "\ufffd\ufffd"


def test_stream_concatenates_to_decode(tokenizer):
    rng = random.Random(3)
    for _ in range(500):
        token_ids = random_ids(rng) + tokenizer.encode(random_text(rng))
        stream = tokenizer.stream()
        pieces = [stream.push(token_id) for token_id in token_ids]
        assert "".join(pieces) + stream.flush() == tokenizer.decode(token_ids)


def test_stream_never_splits_a_character_and_never_waits(tokenizer):
    text = "naïve 🙂👩‍🚀 ไทย 日本語 𓀀𓁐"
    stream, sent, received = tokenizer.stream(), b"", ""
    for token_id in tokenizer.encode(text):
        sent += tokenizer.token_bytes(token_id)
        received += stream.push(token_id)
        assert received == sent.decode("utf-8", "ignore")
    assert received == text
    assert stream.flush() == ""


def test_stream_flush_reports_a_cut_character(tokenizer):
    stream = tokenizer.stream()
    head = next(token_id for token_id in range(256) if tokenizer.token_bytes(token_id) == b"\xf0")
    assert (stream.push(head), stream.flush(), stream.flush()) == ("", "\ufffd", "")


def test_missing_file_is_named(tmp_path):
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "{}", '{"model": 3}'])
def test_broken_file_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def small_backend(decoder: decoders.Decoder) -> tokenizers.Tokenizer:
    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoder
    return backend


def test_tokenizer_that_is_not_byte_level_is_refused():
    with pytest.raises(TokenizerError, match="byte-level"):
        Tokenizer(small_backend(decoders.WordPiece()))


def test_file_settings_do_not_change_encoding(tmp_path):
    """Some checkpoints set padding, truncation and added tokens that are not marked special."""
    backend = small_backend(decoders.ByteLevel())
    backend.add_special_tokens(["<|start|>"])
    backend.add_tokens(["<|end|>"])
    backend.enable_padding(length=7)
    backend.enable_truncation(max_length=3)
    backend.save(str(tmp_path / "tokenizer.json"))
    flags = [t["special"] for t in json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]]
    assert flags == [True, False]
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.special_ids == {"<|start|>": 256, "<|end|>": 257}
    assert max(tokenizer.encode("<|start|> <|end|>")) < 256
    assert len(tokenizer.encode("abcdefghij")) == 10
    assert len(tokenizer.encode("a")) == 1
