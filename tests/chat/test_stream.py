"""Streams of tokens, valid, damaged and random: all give well-formed deltas, and no text is lost."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import firesteel
from firesteel.chat.format import Message
from firesteel.chat.harmony import Harmony
from firesteel.chat.message import Begin, End, ParsedMessage, TextDelta
from firesteel.chat.stream import HarmonyStream
from firesteel.chat.tokenizer import Tokenizer

MARKS = ("start", "message", "channel", "constrain", "end", "return", "call", "endoftext")
NAMES = ["functions.get_weather", "functions.a", "browser.search", "python", "functions.f_1-2"]
TYPES = ["<|constrain|>json", "json", "code", "<|constrain|>xml"]
# No word of a body can be mistaken for a word of a header.
BODIES = [
    "",
    "Zq7",
    " Zq1 zq2, zq3. ",
    '{"zq": "Zürich", "n": [1, 2]}',
    "日本語 🙂",
    "zq\n\nzq zq zq zq zq",
    "{not json",
    "<|end|>zq",
    "zq" * 40,
    "🙂",
]


@pytest.fixture(scope="module")
def kindling():
    return Harmony(Tokenizer.load(Path(firesteel.__file__).parent / "kindling"))


def tokens_of(harmony, text: str) -> list[int]:
    """Returns the tokens of a text in which the names of structural tokens stand for these tokens."""
    special, encode = harmony.tokenizer.special_ids, harmony.tokenizer.encode
    parts = re.split(r"(<\|\w+\|>)", text)
    return [token for part in parts for token in ([special[part]] if part in special else encode(part))]


def read(harmony, token_ids: list[int], role: str | None = "assistant") -> HarmonyStream:
    """Reads a stream and checks every guarantee about its deltas."""
    stream = HarmonyStream(harmony, role=role, call_id=map("call_{}".format, itertools.count()).__next__)
    deltas = [delta for token in token_ids for delta in stream.push(token)]
    deltas += stream.finish()
    assert stream.finish() == []
    check_order(deltas)
    whole = ParsedMessage()
    for delta in deltas:
        whole.add(delta)
    assert whole == stream.message
    assert "".join(part.begin.header + part.text for part in whole.parts) == ordinary_text(harmony, token_ids)
    return stream


def check_order(deltas) -> None:
    """Checks that parts follow one another, each begins and ends, and each call has a name and its own id."""
    index, is_open, call_ids = -1, False, set()
    for delta in deltas:
        match delta:
            case Begin():
                assert not is_open and delta.index == index + 1
                index, is_open = delta.index, True
                is_call = delta.kind == "tool_call"
                assert is_call == bool(delta.name) == (delta.call_id is not None)
                assert delta.call_id not in call_ids
                call_ids |= {delta.call_id} - {None}
            case TextDelta():
                assert is_open and delta.index == index and delta.text
            case End():
                assert is_open and delta.index == index
                is_open = False
    assert not is_open


def split_at_marks(harmony, token_ids):
    """Yields (mark before, tokens up to the next mark)."""
    marks = {harmony.tokenizer.special_ids[f"<|{name}|>"]: name for name in MARKS}
    segments = [("", [])]
    for token in token_ids:
        if token in marks:
            segments.append((marks[token], []))
        else:
            segments[-1][1].append(token)
    return segments


def ordinary_text(harmony, token_ids) -> str:
    return "".join(harmony.tokenizer.decode(segment) for _, segment in split_at_marks(harmony, token_ids))


class Streams:
    """Seeded streams of several kinds."""

    def __init__(self, harmony, seed: int) -> None:
        self.harmony, self.rng = harmony, random.Random(seed)
        self.marks = [harmony.tokenizer.special_ids[f"<|{name}|>"] for name in MARKS]

    def header(self) -> str:
        recipient = self.rng.choice([None, None, *NAMES])
        address = f" to={recipient}" if recipient else ""
        kind = self.rng.choice([None, *TYPES]) if recipient else None
        kind = "" if kind is None else f" {kind}"
        before, after = (address, "") if self.rng.random() < 0.3 else ("", address)
        return f"{before}<|channel|>{self.rng.choice(['analysis', 'commentary', 'final'])}{after}{kind}"

    def valid(self) -> list[int]:
        """Returns what may follow `<|start|>assistant`, sometimes cut short in the last content."""
        token_ids, count = [], self.rng.randrange(1, 5)
        for index in range(count):
            opening = "<|start|>assistant" if index else ""
            token_ids += tokens_of(self.harmony, f"{opening}{self.header()}<|message|>")
            token_ids += self.harmony.tokenizer.encode(self.rng.choice(BODIES))
            token_ids += tokens_of(self.harmony, self.rng.choice(["<|end|>", "<|return|>", "<|call|>"]))
        return token_ids[:-1] if self.rng.random() < 0.2 else token_ids

    def damaged(self) -> list[int]:
        token_ids = self.valid()
        for _ in range(self.rng.randrange(1, 5)):
            damage = self.rng.choice([self.drop, self.double, self.swap, self.cut, self.replace, self.insert])
            token_ids = damage(token_ids)
        return token_ids

    def place(self, token_ids: list[int], *, special: bool = True) -> int:
        places = [i for i, token in enumerate(token_ids) if not special or token in self.marks]
        return self.rng.choice(places) if places else 0

    def drop(self, token_ids: list[int]) -> list[int]:
        place = self.place(token_ids)
        return token_ids[:place] + token_ids[place + 1 :]

    def double(self, token_ids: list[int]) -> list[int]:
        place = self.place(token_ids)
        return token_ids[: place + 1] + token_ids[place:]

    def swap(self, token_ids: list[int]) -> list[int]:
        if not token_ids:
            return []
        one, other = self.place(token_ids), self.place(token_ids, special=self.rng.random() < 0.5)
        swapped = list(token_ids)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        return swapped

    def cut(self, token_ids: list[int]) -> list[int]:
        place = self.place(token_ids, special=self.rng.random() < 0.5)
        return token_ids[:place] if self.rng.random() < 0.5 else token_ids[place:]

    def replace(self, token_ids: list[int]) -> list[int]:
        place = self.place(token_ids)
        return [*token_ids[:place], self.rng.choice(self.marks), *token_ids[place + 1 :]]

    def insert(self, token_ids: list[int]) -> list[int]:
        place = self.rng.randrange(len(token_ids) + 1)
        return token_ids[:place] + self.noise(self.rng.randrange(1, 4)) + token_ids[place:]

    def noise(self, count: int) -> list[int]:
        """Returns structural tokens as often as others, and sometimes an id without a token."""
        size = self.harmony.tokenizer.vocab_size
        return [
            self.rng.choice(self.marks) if self.rng.random() < 0.5 else self.rng.randrange(size + 3)
            for _ in range(count)
        ]

    def words(self) -> list[int]:
        """Returns words of headers and special tokens in any order."""
        words = [
            "assistant",
            "analysis",
            "final",
            " to=",
            "functions.f",
            " json",
            " ",
            "zq",
            *map("<|{}|>".format, MARKS),
        ]
        return tokens_of(self.harmony, "".join(self.rng.choices(words, k=self.rng.randrange(20))))


def read_many(harmony, seeds: range) -> None:
    """Returns a stream; five of eight are damaged valid streams."""
    for seed in seeds:
        streams = Streams(harmony, seed)
        match seed % 8:
            case 0:
                read_valid(harmony, streams.valid())
            case 1:
                read(harmony, streams.noise(streams.rng.randrange(40)))
            case 2:
                read(harmony, streams.words(), role=streams.rng.choice(["assistant", None]))
            case _:
                read(harmony, streams.damaged())


def read_valid(harmony, token_ids: list[int]) -> None:
    parts = read(harmony, token_ids).message.parts
    assert [as_message(part) for part in parts] == harmony.decode(token_ids)


def as_message(part) -> Message:
    begin = part.begin
    return Message(
        role=begin.role,
        content=part.text,
        channel=begin.channel,
        recipient=begin.recipient,
        content_type=begin.content_type,
    )


def test_streams_of_every_kind_lose_nothing(kindling):
    read_many(kindling, range(3000))


@pytest.mark.slow
def test_a_hundred_thousand_streams_lose_nothing(kindling):
    read_many(kindling, range(100_000, 200_000))


def test_words_of_a_text_are_shown_unless_a_header_closes_around_them(kindling):
    """A client misses at most three words between <|start|>, <|channel|> and <|message|>."""
    for seed in range(2000):
        token_ids = Streams(kindling, seed).damaged()
        message = read(kindling, token_ids).message
        allowed = 0
        for mark, segment in split_at_marks(kindling, token_ids):
            if mark in ("start", "channel", "constrain") and len(kindling.tokenizer.decode(segment).split()) <= 3:
                allowed += kindling.tokenizer.decode(segment).count("zq")
        begins = [part.begin for part in message.parts]
        hidden = sum(begin.header.count("zq") - (begin.recipient or "").count("zq") for begin in begins)
        assert hidden <= allowed, f"seed {seed}"


def test_valid_streams_read_as_openai_harmony(harmony, library):
    import openai_harmony as peer

    for seed in range(300):
        token_ids = Streams(harmony, seed).valid()
        parts = read(harmony, token_ids).message.parts
        theirs = library.parse_messages_from_completion_tokens(token_ids, peer.Role.ASSISTANT)
        assert [(p.begin.channel, p.begin.recipient, p.begin.content_type, p.text) for p in parts] == [
            (m.channel, m.recipient, m.content_type, "".join(part.text for part in m.content)) for m in theirs
        ], f"seed {seed}"


def test_damaged_streams_of_the_public_vocabulary_lose_nothing(harmony):
    read_many(harmony, range(500))


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_ids_lose_nothing(kindling, data):
    marks = [kindling.tokenizer.special_ids[f"<|{name}|>"] for name in MARKS]
    word = st.sampled_from([*tokens_of(kindling, "assistant analysis final to=functions.f json zq é"), *marks])
    token_ids = data.draw(st.lists(word | st.integers(-5, 2**33), max_size=40))
    read(kindling, token_ids, role=data.draw(st.sampled_from(["assistant", None])))


def shown(harmony, text: str) -> list[tuple[str, str]]:
    """Returns kind, or name of the function, and text of each part that a client sees."""
    parts = read(harmony, tokens_of(harmony, text)).message.parts
    return [(p.begin.name or p.kind, p.text) for p in parts if p.text or p.kind == "tool_call"]


CALL = '{"a": 1}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>",
            [("reasoning", "hm"), ("content", "Hi")],
        ),
        (f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{CALL}<|call|>", [("f", CALL)]),
        (f" to=functions.f<|channel|>analysis code<|message|>{CALL}<|call|>", [("f", CALL)]),
        ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{oops<|call|>", [("f", "{oops")]),
        ("<|channel|>commentary<|message|>Let me see.<|end|>", [("content", "Let me see.")]),
        ("Paris", [("content", "Paris")]),
        ("The capital of France is Paris<|return|>", [("content", "The capital of France is Paris")]),
        ("<|channel|>analysis We need to think<|end|>", [("reasoning", " We need to think")]),
        ("<|channel|>final Yes<|return|>", [("content", " Yes")]),
        (f"<|channel|>commentary to=functions.f {CALL}<|call|>", [("f", f" {CALL}")]),
        (f"<|channel|>commentary to=functions.f <|constrain|>json{CALL}<|call|>", [("f", CALL)]),
        ("<|channel|>commentary to=functions.now<|call|>", [("now", "")]),
        ("<|channel|>analysis<|message|>hm<|channel|>final<|message|>Hi", [("reasoning", "hm"), ("content", "Hi")]),
        (
            "<|channel|>analysis<|message|>hm<|start|>assistant<|channel|>final<|message|>Hi",
            [("reasoning", "hm"), ("content", "Hi")],
        ),
        (
            f"<|channel|>analysis<|message|>hm<|end|>commentary to=functions.f <|constrain|>json<|message|>{CALL}",
            [("reasoning", "hm"), ("f", CALL)],
        ),
        ("<|channel|>analysis<|message|>hm<|end|>final<|message|>Hi", [("reasoning", "hm"), ("content", "Hi")]),
        ("<|channel|>analysis<|message|>hm<|end|>Hi there", [("reasoning", "hm"), ("content", "Hi there")]),
        (
            "<|start|><|start|>assistant<|channel|><|channel|>final<|message|><|message|>Hi<|end|><|end|>",
            [("content", "Hi")],
        ),
        ("<|channel|>commentary to=python<|message|>1+1<|call|>", [("python", "1+1")]),
        (
            "<|channel|>final<|message|>Hi<|end|>"
            "<|start|>functions.f to=assistant<|channel|>commentary<|message|>3",
            [("content", "Hi"), ("content", "3")],
        ),
        ("<|channel|>analysis<|message|>", []),
        ("<|channel|>anal", []),
        ("<|channel|>commentary to=functions.get_wea", []),
        ("<|start|>assis", []),
        ("", []),
    ],
)
def test_stream_shows(kindling, text, expected):
    assert shown(kindling, text) == expected


def test_character_is_shown_with_its_last_token(kindling):
    stream = HarmonyStream(kindling)
    for token in tokens_of(kindling, "<|channel|>final<|message|>"):
        stream.push(token)
    pieces = [stream.push(token) for token in kindling.tokenizer.encode("🙂")]
    assert len(pieces) > 1
    assert pieces[:-1] == [[]] * (len(pieces) - 1)
    assert pieces[-1] == [TextDelta(index=0, text="🙂")]


def test_text_is_shown_with_its_token(kindling):
    stream = HarmonyStream(kindling)
    for token in tokens_of(kindling, "<|channel|>final<|message|>"):
        stream.push(token)
    for token in kindling.tokenizer.encode("the quick brown fox"):
        assert stream.push(token) == [TextDelta(index=0, text=kindling.tokenizer.decode([token]))]


def test_text_without_a_header_is_held_back_for_three_words_only(kindling):
    stream = HarmonyStream(kindling)
    shown_after = [bool(stream.push(token)) for token in kindling.tokenizer.encode("one two three four five")]
    text = "".join(
        map(kindling.tokenizer.decode, [[t] for t in kindling.tokenizer.encode("one two three four five")])
    )
    assert stream.message.content == text
    assert shown_after[-1] and not shown_after[0]


def test_each_call_has_its_own_id(kindling):
    call = "<|channel|>commentary to=functions.f<|message|>{}<|end|><|start|>assistant"
    stream = HarmonyStream(kindling)
    for token in tokens_of(kindling, call * 3):
        stream.push(token)
    ids = [part.begin.call_id for part in stream.message.tool_calls]
    assert len(set(ids)) == 3
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", call_id) for call_id in ids)
