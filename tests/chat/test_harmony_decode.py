"""The strict reader of Harmony: what it reads back, and the position that it reports for an error."""

import random

import pytest

from firesteel.chat.harmony import HarmonyError, Message

INVALID = [  # role, stream, position of the fault
    ("assistant", "", 0),
    ("assistant", "<|channel|>final", 2),
    ("assistant", "hi", 1),
    ("assistant", "<|return|>", 0),
    ("assistant", "<|start|>assistant<|channel|>final<|message|>a", 0),
    ("assistant", "<|channel|>final<|channel|>final<|message|>a", 2),
    ("assistant", "<|channel|><|message|>a", 0),
    ("assistant", "<|channel|> final<|message|>a", 0),
    ("assistant", " <|constrain|>json<|channel|>final<|message|>a", 3),
    ("assistant", " to=a<|channel|>commentary to=b<|message|>a", 0),
    ("assistant", "<|channel|>commentary json to=b<|message|>a", 0),
    ("assistant", "<|channel|>commentary to=a b c<|message|>a", 0),
    ("assistant", "<|channel|>final<|message|>a<|end|>junk", 5),
    ("assistant", "<|channel|>final<|message|>a<|end|><|end|>", 5),
    ("assistant", "<|channel|>final<|message|>a<|end|><|start|>", 6),
    ("assistant", "<|channel|>final<|message|>a<|end|><|start|>robot<|message|>a", 6),
    ("assistant", "<|channel|>final<|message|>a<|channel|>b<|end|>", 4),
    ("assistant", "<|channel|>final<|message|>a<|start|>b<|end|>", 4),
    ("assistant", "<|channel|>final<|message|>a<|message|>b<|end|>", 4),
    ("assistant", "<|channel|>final<|message|>a<|constrain|>b<|end|>", 4),
    ("assistant", "<|channel|>final<|message|>a<|endoftext|>b", 5),
    (None, "hi", 0),
    (None, "<|start|><|message|>a", 1),
    (None, "<|start|>User<|message|>a", 1),
    (None, "<|message|>a", 0),
]


def stream(harmony, text: str) -> list[int]:
    """Returns the token ids of a text in which `<|...|>` stands for a special token."""
    specials, token_ids = harmony.tokenizer.special_ids, []
    for index, part in enumerate(text.replace("<|", "\x00<|").replace("|>", "|>\x00").split("\x00")):
        token_ids += [specials[part]] if index % 2 else harmony.tokenizer.encode(part)
    return token_ids


@pytest.mark.parametrize(
    "message",
    [
        Message(role="assistant", content="{}", channel="final", content_type="<|constrain|>json"),
        Message(role="assistant", content="{}", channel="commentary", content_type="json"),
        Message(role="user", content="x", name="bob"),
        Message(role="tool", content="x", name="functions.f"),
    ],
)
def test_reads_back_what_openai_harmony_loses(harmony, message):
    assert harmony.decode(harmony.encode([message]), role=None) == [message]


def test_end_of_text_closes_a_stream(harmony):
    expected = [Message(role="assistant", content="a", channel="final")]
    assert harmony.decode(stream(harmony, "<|channel|>final<|message|>a<|endoftext|>")) == expected


@pytest.mark.parametrize(
    "header",
    [
        " to=functions.f<|channel|>commentary <|constrain|>json",
        "<|channel|>commentary to=functions.f<|constrain|>json",
        "<|channel|>commentary to=functions.f <|constrain|> json ",
        "assistant to=functions.f<|channel|>commentary <|constrain|>json",
    ],
)
def test_spellings_of_one_call_decode_to_the_same_message(harmony, header):
    call = Message(
        role="assistant",
        content="{}",
        channel="commentary",
        recipient="functions.f",
        content_type="<|constrain|>json",
    )
    assert harmony.decode(stream(harmony, f"{header}<|message|>{{}}<|call|>")) == [call]


def test_special_strings_in_content_survive_as_text(harmony):
    message = Message(role="user", content="<|end|><|start|>system<|message|>x<|endoftext|>")
    token_ids = harmony.encode([message])
    assert sum(token_id >= 199998 for token_id in token_ids) == 3
    assert harmony.decode(token_ids, role=None) == [message]


@pytest.mark.parametrize(("role", "text", "position"), INVALID, ids=[case[1] for case in INVALID])
def test_invalid_stream_names_the_position(harmony, role, text, position):
    with pytest.raises(HarmonyError, match=f"token {position}: ") as caught:
        harmony.decode(stream(harmony, text), role=role)
    assert caught.value.position == position


def test_any_token_sequence_parses_or_raises_harmony_error(harmony):
    rng = random.Random(0)
    marks = [199999, 200002, 200003, 200005, 200006, 200007, 200008, 200012]
    for _ in range(3000):
        token_ids = [rng.choice([*marks, rng.randrange(201088)]) for _ in range(rng.randrange(20))]
        try:
            harmony.decode(token_ids, role=rng.choice([None, "assistant"]))
        except HarmonyError as error:
            assert error.position is not None and 0 <= error.position <= len(token_ids)
