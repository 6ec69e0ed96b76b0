"""The tokenizer encodes every text, separates digits, and its chat template equals our Harmony."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.chat.harmony import Harmony, Message, developer_message, system_message
from firesteel.chat.tokenizer import Tokenizer
from kindling.tokenizer import SPECIAL_TOKENS


@pytest.fixture(scope="module")
def tokenizer(tokenizer_directory):
    return Tokenizer.load(tokenizer_directory)


@pytest.fixture(scope="module")
def peer(tokenizer_directory):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(tokenizer_directory)


def test_any_text_round_trips(tokenizer):
    @given(st.text())
    def check(text):
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()


def test_any_byte_has_a_token(tokenizer):
    text = "".join(map(chr, range(0x250))) + "\U0001f525漢字\r\n\t  "
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_size_and_special_tokens(tokenizer):
    assert tokenizer.vocab_size == 2048
    assert set(tokenizer.special_ids) == set(SPECIAL_TOKENS)
    assert min(tokenizer.special_ids.values()) == 2048 - len(SPECIAL_TOKENS)


def test_each_digit_is_a_token(tokenizer):
    assert [tokenizer.decode([i]) for i in tokenizer.encode("4821")] == list("4821")


def test_system_message_is_short(tokenizer):
    assert len(tokenizer.encode(system_message(date="2026-01-01").content)) < 70


def test_chat_template_equals_harmony(tokenizer, peer):
    chat = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "Spell cat."},
    ]
    messages = [
        system_message(effort="high", date="2026-01-01"),
        developer_message(instructions="You are a helpful assistant."),
        Message(role="user", content="What is 2 + 2?"),
        Message(role="assistant", content="4", channel="final"),
        Message(role="user", content="Spell cat."),
    ]
    text = peer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True, reasoning_effort="high", current_date="2026-01-01"
    )
    expected = Harmony(tokenizer).encode_for_completion(messages)
    assert text == tokenizer.decode(expected)
    assert peer(text, add_special_tokens=False)["input_ids"] == expected


def test_chat_template_defaults(tokenizer, peer):
    text = peer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True)
    messages = [system_message(), Message(role="user", content="Hi")]
    assert text == tokenizer.decode(Harmony(tokenizer).encode_for_completion(messages))


def test_transformers_reads_the_special_tokens(peer):
    assert (peer.eos_token, peer.pad_token) == ("<|return|>", "<|endoftext|>")
