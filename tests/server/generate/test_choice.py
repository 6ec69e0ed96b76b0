"""Readers: pieces of any size join to the same text, stop strings end it, and a choice counts its tokens."""

from dataclasses import replace

import pytest

from firesteel.chat.harmony import Harmony
from firesteel.chat.message import ParsedMessage, TextDelta
from firesteel.server.generate.choice import ChatReader, Choice, ChoicePiece, PromptReader, TextReader
from firesteel.types import Request, RequestStatistics, SamplingParams, StepOutput

TURN = "<|channel|>analysis<|message|>thé<|end|><|start|>assistant<|channel|>final<|message|>naïve end<|return|>"


@pytest.fixture
def spelled(tokenizer):
    """Returns the token ids of a text with special tokens in it."""

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
    """Returns the message and the text of a choice, and its last piece."""
    message, text, piece = ParsedMessage(), "", ChoicePiece()
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
    reader = ChatReader(Harmony(tokenizer), SamplingParams())
    message, _, last = read(reader, spelled(TURN), size)
    assert (message.reasoning, message.content, last.finish_reason) == ("thé", "naïve end", "stop")


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_choice_counts_its_tokens(tokenizer, spelled, size):
    request = Request(request_id="a", token_ids=[1] * 5, params=SamplingParams())
    choice = Choice(request=request, reader=ChatReader(Harmony(tokenizer), SamplingParams()))
    for output in outputs(spelled(TURN), size):
        assert choice.finish_reason is None
        choice.read([output])
    assert (choice.num_prompt, choice.num_cached, choice.num_output) == (5, 3, len(spelled(TURN)))
    assert choice.num_reasoning == 4 and choice.finish_reason == "stop"


@pytest.mark.parametrize("at_once", [True, False])
def test_outputs_after_a_stop_string_leave_only_their_statistics(tokenizer, spelled, at_once):
    """The engine runs on until the request is finished."""
    params = SamplingParams(stop=("ve",))
    request = Request(request_id="a", token_ids=[1], params=params)
    choice = Choice(request=request, reader=TextReader(tokenizer, params))
    made = outputs(spelled("naïve end"), 1)
    statistics = RequestStatistics(
        queue_s=0, first_token_s=0, token_s=0, prompt_tokens=1, cached_tokens=0, output_tokens=10, preemptions=0
    )
    made[-1] = replace(made[-1], statistics=statistics)
    pieces = [choice.read(made)] if at_once else [choice.read([output]) for output in made]
    shown = [piece for piece in pieces if piece is not None]
    assert "".join(piece.text for piece in shown) == "naï" and shown[-1].stop_reason == "ve"
    assert (choice.num_output, choice.finish_reason, choice.statistics) == (6, "stop", statistics)


def test_token_of_a_scored_prompt_is_not_counted():
    request = Request(request_id="a", token_ids=[1], params=SamplingParams(max_tokens=1, prompt_logprobs=0))
    choice = Choice(request=request, reader=PromptReader())
    piece = choice.read(outputs([7], 1, "length"))
    assert (piece.token_ids, piece.finish_reason, choice.num_output) == ([], "length", 0)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("stop", "content"), [("ve", "naï"), ("end", "naïve "), ("d", "naïve en"), ("xyz", "naïve end")]
)
def test_stop_string_cuts_the_content(tokenizer, spelled, size, stop, content):
    reader = ChatReader(Harmony(tokenizer), SamplingParams(stop=(stop,)))
    message, _, last = read(reader, spelled(TURN), size)
    assert message.content == content and message.reasoning == "thé"
    assert last.stop_reason == (stop if content != "naïve end" else None)


@pytest.mark.parametrize("size", [1, 1000])
def test_text_that_might_have_begun_a_stop_string_stays_in_its_part(tokenizer, spelled, size):
    turn = "<|channel|>commentary<|message|>abc<|end|><|start|>assistant<|channel|>final<|message|>xyz<|return|>"
    reader = ChatReader(Harmony(tokenizer), SamplingParams(stop=("cd", "z!")))
    message, _, _ = read(reader, spelled(turn), size)
    assert [part.text for part in message.parts] == ["abc", "xyz"]


def test_stop_strings_do_not_count_before_min_tokens(tokenizer, spelled):
    params = SamplingParams(stop=("ve",), min_tokens=100, max_tokens=200)
    assert read(ChatReader(Harmony(tokenizer), params), spelled(TURN), 1)[0].content == "naïve end"


def test_turn_that_ends_in_a_call_has_the_reason_tool_calls(tokenizer, spelled):
    reader = ChatReader(Harmony(tokenizer), SamplingParams())
    turn = spelled("<|channel|>commentary to=functions.look<|message|>{}<|call|>")
    message, _, last = read(reader, turn, 1)
    assert last.finish_reason == "tool_calls" and message.tool_calls[0].text == "{}"
    cut = read(ChatReader(Harmony(tokenizer), SamplingParams()), turn[:-1], 1, "length")[2]
    assert cut.finish_reason == "length"


def test_echoed_text_is_one_delta(tokenizer):
    """Each choice parsed the text token by token, which stopped all streams for seconds."""
    harmony = Harmony(tokenizer)
    reader = ChatReader(harmony, SamplingParams(), harmony.open_channel("final"), echoed="word " * 1000)
    [output] = outputs(tokenizer.encode("."), 1, "length")
    assert [delta.text for delta in reader.push(output).deltas if isinstance(delta, TextDelta)] == [
        "word " * 1000,
        ".",
    ]


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_text_omits_its_stop_token(tokenizer, spelled, size):
    reader = TextReader(tokenizer, SamplingParams(stop=("zz",)))
    _, text, last = read(reader, [*spelled("naïve z"), tokenizer.special_ids["<|return|>"]], size)
    assert (text, last.finish_reason) == ("naïve z", "stop")
    reader = TextReader(tokenizer, SamplingParams(stop=("ve",)))
    assert read(reader, spelled("naïve z"), size, "length")[1] == "naï"


def test_pieces_join_in_order():
    first = ChoicePiece(text="a", token_ids=[1], num_reasoning=1)
    second = ChoicePiece(text="b", token_ids=[2], num_reasoning=1, finish_reason="stop")
    first.join(second)
    assert (first.text, first.token_ids, first.num_reasoning, first.finish_reason) == ("ab", [1, 2], 2, "stop")
