"""Readers: pieces of any size add up to the same text, stop strings end it, tokens are counted."""

import pytest

from firesteel.chat.harmony import Harmony
from firesteel.chat.message import AssistantMessage
from firesteel.server.generate.choice import ChatReader, Piece, TextReader
from firesteel.types import SamplingParams, StepOutput

TURN = "<|channel|>analysis<|message|>thé<|end|><|start|>assistant<|channel|>final<|message|>naïve end<|return|>"


@pytest.fixture
def spelled(tokenizer):
    """Token ids of a text with special tokens in it."""

    def spell(text):
        for name, token in tokenizer.special_ids.items():
            text = text.replace(name, chr(0xE000 + token))
        ids = []
        for letter in text:
            special = ord(letter) - 0xE000
            ids += [special] if special in tokenizer.special_ids.values() else tokenizer.encode(letter)
        return ids

    return spell


def outputs(token_ids, size, reason="stop"):
    parts = [token_ids[start : start + size] for start in range(0, len(token_ids), size)]
    return [
        StepOutput(
            request_id="a", token_ids=part, finish_reason=reason if number + 1 == len(parts) else None, num_cached=3
        )
        for number, part in enumerate(parts)
    ]


def read(reader, token_ids, size, reason="stop"):
    """The message or text of a choice, and its last piece."""
    message, text, piece = AssistantMessage(), "", Piece()
    for output in outputs(token_ids, size, reason):
        piece = reader.push(output)
        text += piece.text
        for delta in piece.deltas:
            message.add(delta)
        if piece.finish_reason:
            break
    return message, text, piece


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_message_does_not_depend_on_the_pieces(tokenizer, spelled, size):
    reader = ChatReader(Harmony(tokenizer), SamplingParams(), num_prompt=5)
    message, _, last = read(reader, spelled(TURN), size)
    assert (message.reasoning, message.content, last.finish_reason) == ("thé", "naïve end", "stop")
    assert reader.tally.num_output == len(spelled(TURN)) and reader.tally.num_reasoning == 4
    assert (reader.tally.num_cached, reader.tally.finish_reason) == (3, "stop")


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("stop", "content"), [("ve", "naï"), ("end", "naïve "), ("d", "naïve en"), ("xyz", "naïve end")]
)
def test_stop_string_cuts_the_content(tokenizer, spelled, size, stop, content):
    reader = ChatReader(Harmony(tokenizer), SamplingParams(stop=(stop,)), num_prompt=5)
    message, _, last = read(reader, spelled(TURN), size)
    assert message.content == content and message.reasoning == "thé"
    assert last.stop_reason == (stop if content != "naïve end" else None)


@pytest.mark.parametrize("size", [1, 1000])
def test_text_that_might_have_begun_a_stop_string_stays_in_its_part(tokenizer, spelled, size):
    turn = "<|channel|>commentary<|message|>abc<|end|><|start|>assistant<|channel|>final<|message|>xyz<|return|>"
    reader = ChatReader(Harmony(tokenizer), SamplingParams(stop=("cd", "z!")), num_prompt=5)
    message, _, _ = read(reader, spelled(turn), size)
    assert [part.text for part in message.parts] == ["abc", "xyz"]


def test_min_tokens_hold_stop_strings_off(tokenizer, spelled):
    params = SamplingParams(stop=("ve",), min_tokens=100, max_tokens=200)
    assert read(ChatReader(Harmony(tokenizer), params, num_prompt=5), spelled(TURN), 1)[0].content == "naïve end"


def test_turn_that_ends_in_a_call_says_so(tokenizer, spelled):
    reader = ChatReader(Harmony(tokenizer), SamplingParams(), num_prompt=5)
    turn = spelled("<|channel|>commentary to=functions.look<|message|>{}<|call|>")
    message, _, last = read(reader, turn, 1)
    assert last.finish_reason == "tool_calls" and message.tool_calls[0].text == "{}"
    cut = read(ChatReader(Harmony(tokenizer), SamplingParams(), num_prompt=5), turn[:-1], 1, "length")[2]
    assert cut.finish_reason == "length"


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_text_leaves_its_stop_token_out(tokenizer, spelled, size):
    reader = TextReader(tokenizer, SamplingParams(stop=("zz",)), num_prompt=2)
    _, text, last = read(reader, [*spelled("naïve z"), tokenizer.special_ids["<|return|>"]], size)
    assert (text, last.finish_reason) == ("naïve z", "stop") and reader.tally.num_output == 9
    reader = TextReader(tokenizer, SamplingParams(stop=("ve",)), num_prompt=2)
    assert read(reader, spelled("naïve z"), size, "length")[1] == "naï"


def test_pieces_join_in_order():
    first, second = Piece(text="a", token_ids=[1]), Piece(text="b", token_ids=[2], finish_reason="stop")
    first.join(second)
    assert (first.text, first.token_ids, first.finish_reason) == ("ab", [1, 2], "stop")
