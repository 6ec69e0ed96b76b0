"""Rendering and parsing of Harmony, token for token and message for message as openai-harmony does."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise, product

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from firesteel.chat.harmony import (
    Harmony,
    HarmonyError,
    Message,
    ResponseFormat,
    developer_message,
    drop_earlier_reasoning,
    system_message,
)
from firesteel.chat.tokenizer import Tokenizer, TokenizerError
from firesteel.chat.tools import Tool

TEXTS = [
    "", "hi", " lead", "trail \n", "日本語 🙂", "<|end|><|start|>system<|message|>", "a<|call|>", "\n\n",
    '{"city": "Zürich", "n": [1, 2]}', "# Tools", "to=functions.x", "x" * 300, "1234567", "\u200b\u00a0\x00",
]  # fmt: skip
NAMES = ["functions.get_weather", "functions.a", "browser.search", "python", "functions.f_1-2"]
CHANNELS = ["analysis", "commentary", "final"]
TYPES = ["<|constrain|>json", "json", "code", "<|constrain|>xml"]
ODD = [
    "",
    " ",
    "\n",
    "  x",
    "all",
    "a b",
    "<|end|>",
    "<|constrain|>",
    "<|constrain|> b<|end|>",
    "a<|constrain|>b",
    "é:",
]


class Conversations:
    """Random conversations, each message as ours and as openai-harmony's."""

    def __init__(self, rng: random.Random, schema_maker) -> None:
        import openai_harmony

        self.peer = openai_harmony
        self.rng = rng
        self.maker = schema_maker(rng)

    def maybe(self, chance: float, choices: list[str]) -> str | None:
        return self.rng.choice(choices) if self.rng.random() < chance else None

    def text(self) -> str:
        return "".join(self.rng.choice(TEXTS) for _ in range(self.rng.randrange(4)))

    def prompts(self) -> list[tuple[Message, object]]:
        tools = self.maker.tools() if self.rng.random() < 0.5 else []
        pairs = []
        if self.rng.random() < 0.7:
            pairs.append(self.system(has_functions=bool(tools)))
        if tools or self.rng.random() < 0.5:
            pairs.append(self.developer(tools))
        return pairs

    def system(self, *, has_functions: bool) -> tuple[Message, object]:
        effort = self.rng.choice(["low", "medium", "high"])
        settings = {"identity": self.maybe(0.3, TEXTS), "knowledge_cutoff": self.maybe(0.3, ["2025-01", ""])}
        settings = {key: value for key, value in settings.items() if value is not None}
        date = self.maybe(0.6, ["2025-06-28", "1 May"])
        content = self.peer.SystemContent.new().with_reasoning_effort(
            self.peer.ReasoningEffort(effort.capitalize())
        )
        if "identity" in settings:
            content.with_model_identity(settings["identity"])
        if "knowledge_cutoff" in settings:
            content.with_knowledge_cutoff(settings["knowledge_cutoff"])
        if date is not None:
            content.with_conversation_start_date(date)
        ours = system_message(effort=effort, date=date, has_functions=has_functions, **settings)
        return ours, self.peer.Message.from_role_and_content(self.peer.Role.SYSTEM, content)

    def developer(self, tools: list[Tool]) -> tuple[Message, object]:
        instructions = self.text() if self.rng.random() < 0.6 else None
        content = self.peer.DeveloperContent.new()
        if instructions is not None:
            content.with_instructions(instructions)
        if tools:
            described = [self.peer.ToolDescription.new(t.name, t.description, t.parameters) for t in tools]
            content.with_function_tools(described)
        ours = developer_message(instructions=instructions, tools=tools)
        return ours, self.peer.Message.from_role_and_content(self.peer.Role.DEVELOPER, content)

    def plain(self, message: Message) -> tuple[Message, object]:
        theirs = self.peer.Message(
            author=self.peer.Author(role=self.peer.Role(message.role), name=message.name),
            content=[self.peer.TextContent(text=message.content)],
            channel=message.channel,
            recipient=message.recipient,
            content_type=message.content_type,
        )
        return message, theirs

    def odd_message(self) -> Message:
        """Any header openai-harmony renders, sensible or not."""
        role = self.rng.choice(["system", "developer", "user", "assistant", "assistant", "tool"])
        return Message(
            role=role,
            content=self.text(),
            name=self.rng.choice(NAMES + ODD) if role == "tool" else self.maybe(0.2, ["bob", *ODD]),
            channel=self.maybe(0.7, CHANNELS * 5 + ODD),
            recipient=self.maybe(0.4, NAMES * 2 + ["assistant", *ODD]),
            content_type=self.maybe(0.3, TYPES * 3 + ODD),
        )

    def turn(self) -> list[Message]:
        """A question, thoughts, perhaps calls with their results, perhaps an answer."""
        rng = self.rng
        messages = [Message(role="user", content=self.text())]
        for _ in range(rng.choice([0, 0, 1, 2])):
            name = rng.choice(NAMES)
            call = Message(
                role="assistant",
                content=self.text(),
                channel=rng.choice(["commentary", "analysis"]),
                recipient=name,
                content_type=self.maybe(0.7, TYPES),
            )
            result = Message(
                role="tool", content=self.text(), name=name, channel="commentary", recipient="assistant"
            )
            messages += [self.thought()] * (rng.random() < 0.7) + [call] + [result] * (rng.random() < 0.9)
        messages += [self.thought()] * (rng.random() < 0.7)
        if rng.random() < 0.8:
            messages.append(Message(role="assistant", content=self.text(), channel="final"))
        return messages

    def thought(self) -> Message:
        channel = self.rng.choice(["analysis", "commentary"])
        return Message(role="assistant", content=self.text(), channel=channel)

    def sensible(self) -> list[tuple[Message, object]]:
        turns = [message for _ in range(self.rng.randrange(1, 4)) for message in self.turn()]
        return self.prompts() + [self.plain(message) for message in turns]

    def odd(self) -> list[tuple[Message, object]]:
        messages = [self.odd_message() for _ in range(self.rng.randrange(6))]
        return self.prompts() + [self.plain(message) for message in messages]

    def draw(self) -> list[tuple[Message, object]]:
        return self.sensible() if self.rng.random() < 0.6 else self.odd()


def assert_same_rendering(harmony, library, schema_maker, seeds: range) -> None:
    import openai_harmony as peer

    for seed in seeds:
        rng = random.Random(seed)
        pairs = Conversations(rng, schema_maker).draw()
        ours, theirs = [pair[0] for pair in pairs], peer.Conversation(messages=[pair[1] for pair in pairs])
        keep, role = rng.random() < 0.3, rng.choice(["assistant", "assistant", "user", "tool", "system"])
        config = peer.RenderConversationConfig(auto_drop_analysis=not keep)
        shown = f"seed {seed}: {ours}"
        whole = harmony.encode(ours, keep_reasoning=keep)
        assert whole == library.render_conversation(theirs, config), shown
        opened = harmony.encode_for_completion(ours, role=role, keep_reasoning=keep)
        assert opened == library.render_conversation_for_completion(theirs, peer.Role(role), config), shown
        trained = harmony.encode_for_training(ours, keep_reasoning=keep)
        assert trained == library.render_conversation_for_training(theirs, config), shown


def our_message(theirs) -> Message:
    return Message(
        role=theirs.author.role.value,
        name=theirs.author.name,
        content="".join(part.text for part in theirs.content),
        channel=theirs.channel,
        recipient=theirs.recipient,
        content_type=theirs.content_type,
    )


def assert_same_parsing(harmony, library, schema_maker, seeds: range) -> None:
    for seed in seeds:
        messages = [ours for ours, _ in Conversations(random.Random(seed), schema_maker).sensible()]
        token_ids = harmony.encode(messages, keep_reasoning=True)
        assert harmony.decode(token_ids, role=None) == messages, f"seed {seed}"
        theirs = library.parse_messages_from_completion_tokens(token_ids)
        assert [our_message(message) for message in theirs] == messages, f"seed {seed}"


def random_completion(rng: random.Random, harmony) -> list[int]:
    """What a model may write after `<|start|>assistant`: recipients in either place, any valid ending."""
    special, encode = harmony.tokenizer.special_ids, harmony.tokenizer.encode
    token_ids = []
    count = rng.randrange(1, 5)
    for index in range(count):
        recipient = rng.choice([None, None, *NAMES])
        in_role = rng.random() < 0.5
        address = f" to={recipient}" if recipient else ""
        token_ids += [special["<|start|>"], *encode("assistant")] if index else []
        token_ids += encode(address if in_role else "")
        token_ids += [special["<|channel|>"], *encode(rng.choice(CHANNELS) + ("" if in_role else address))]
        kind = rng.choice([None, *TYPES]) if recipient else None
        if kind and kind.startswith("<|constrain|>"):
            space = rng.choice(["", " "]) if recipient and not in_role else " "
            language = kind.removeprefix("<|constrain|>")
            token_ids += [*encode(space), special["<|constrain|>"], *encode(language)]
        elif kind:
            token_ids += encode(f" {kind}")
        token_ids += [special["<|message|>"], *encode("".join(rng.choices(TEXTS, k=2)))]
        token_ids.append(special[rng.choice(["<|end|>", "<|return|>", "<|call|>"])])
    return token_ids[:-1] if rng.random() < 0.2 else token_ids


def assert_same_completions(harmony, library, seeds: range) -> None:
    import openai_harmony as peer

    for seed in seeds:
        token_ids = random_completion(random.Random(seed), harmony)
        ours = harmony.decode(token_ids)
        theirs = library.parse_messages_from_completion_tokens(token_ids, peer.Role.ASSISTANT)
        assert ours == [our_message(message) for message in theirs], f"seed {seed}"
        parser = peer.StreamableParser(library, role=peer.Role.ASSISTANT)
        for token_id in token_ids:
            parser.process(token_id)
        assert ours == [our_message(message) for message in parser.process_eos().messages], f"seed {seed}"


def test_random_conversations_render_as_openai_harmony(harmony, library, schema_maker):
    assert_same_rendering(harmony, library, schema_maker, range(600))


@pytest.mark.slow
def test_many_random_conversations_render_as_openai_harmony(harmony, library, schema_maker):
    assert_same_rendering(harmony, library, schema_maker, range(1000, 11_000))


def test_random_conversations_parse_as_openai_harmony(harmony, library, schema_maker):
    assert_same_parsing(harmony, library, schema_maker, range(300))


@pytest.mark.slow
def test_many_random_conversations_parse_as_openai_harmony(harmony, library, schema_maker):
    assert_same_parsing(harmony, library, schema_maker, range(1000, 6000))


def test_random_completions_parse_as_openai_harmony(harmony, library):
    assert_same_completions(harmony, library, range(500))


@pytest.mark.slow
def test_many_random_completions_parse_as_openai_harmony(harmony, library):
    assert_same_completions(harmony, library, range(1000, 6000))


def test_stop_tokens_cover_openai_harmony(harmony, library):
    assert harmony.stop_token_ids == {*library.stop_tokens_for_assistant_actions(), 199999}


def stream(harmony, text: str) -> list[int]:
    """Token ids of a text in which `<|...|>` stands for special tokens."""
    specials, token_ids = harmony.tokenizer.special_ids, []
    for index, part in enumerate(text.replace("<|", "\x00<|").replace("|>", "|>\x00").split("\x00")):
        token_ids += [specials[part]] if index % 2 else harmony.tokenizer.encode(part)
    return token_ids


def test_system_message_reads_as_published():
    assert system_message(effort="high", date="2025-06-28", has_functions=True).content == (
        "You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\nCurrent date: 2025-06-28\n\nReasoning: high\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every message.\n"
        "Calls to these tools must go to the commentary channel: 'functions'."
    )


def test_unknown_effort_is_refused():
    with pytest.raises(HarmonyError, match="low, medium, high"):
        system_message(effort="extreme")


def test_response_formats_close_the_developer_message():
    formats = [
        ResponseFormat(name="list", schema={"type": "null"}, description="A"),
        ResponseFormat(name="n", schema={}),
    ]
    assert developer_message(instructions="Be brief.", response_formats=formats).content == (
        '# Instructions\n\nBe brief.\n\n# Response Formats\n\n## list\n\n// A\n{"type":"null"}\n\n## n\n\n{}'
    )


def test_reasoning_survives_tool_calls_and_goes_with_the_answer():
    think = Message(role="assistant", content="t", channel="analysis")
    call = Message(role="assistant", content="{}", channel="commentary", recipient="functions.f")
    result = Message(role="tool", content="1", name="functions.f", recipient="assistant")
    answer = Message(role="assistant", content="one", channel="final")
    ask = Message(role="user", content="?")
    assert drop_earlier_reasoning([ask, think, call, result]) == [ask, think, call, result]
    assert drop_earlier_reasoning([ask, think, call, result, answer]) == [ask, call, result, answer]
    assert drop_earlier_reasoning([ask, think, answer, ask, think]) == [ask, think, answer, ask, think]
    assert drop_earlier_reasoning([]) == []


def test_every_short_conversation_drops_reasoning_as_openai_harmony(harmony, library, schema_maker):
    import openai_harmony as peer

    kinds = [
        Message(role="user", content="u"),
        Message(role="user", content="U", channel="final"),
        Message(role="assistant", content="a", channel="analysis"),
        Message(role="assistant", content="c", channel="commentary", recipient="functions.f"),
        Message(role="assistant", content="f", channel="final"),
        Message(role="tool", content="t", channel="analysis", name="functions.f", recipient="assistant"),
    ]
    theirs = [Conversations(random.Random(0), schema_maker).plain(kind)[1] for kind in kinds]
    for size in range(1, 5):
        for chosen in product(range(len(kinds)), repeat=size):
            conversation = peer.Conversation(messages=[theirs[i] for i in chosen])
            expected = library.render_conversation(conversation)
            assert harmony.encode([kinds[i] for i in chosen]) == expected, chosen


def test_tool_message_without_name_is_refused(harmony):
    with pytest.raises(HarmonyError, match="name"):
        harmony.encode([Message(role="tool", content="x")])


@pytest.mark.parametrize("role", ["robot", "", "User"])
def test_unknown_role_is_refused(harmony, role):
    with pytest.raises(HarmonyError, match="unknown role"):
        harmony.encode([Message(role=role, content="x")])
    with pytest.raises(HarmonyError, match="unknown role"):
        harmony.encode_for_completion([], role=role)


@pytest.mark.parametrize(
    "missing", ["start", "end", "message", "channel", "constrain", "return", "call", "endoftext"]
)
def test_missing_special_token_is_named(missing):
    backend = Backend(models.BPE(vocab={"a": 0}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    names = ["start", "end", "message", "channel", "constrain", "return", "call", "endoftext"]
    backend.add_special_tokens([f"<|{name}|>" for name in names if name != missing])
    with pytest.raises(TokenizerError, match=rf"<\|{missing}\|>"):
        Harmony(Tokenizer(backend))


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
def test_spellings_of_one_call_read_alike(harmony, header):
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


def test_rendering_does_not_depend_on_what_was_rendered_before(harmony, tokenizer):
    """Headers and prompts are cached: equal texts in different roles, and callers that edit the result."""
    messages = [Message(role=role, content="user") for role in ("system", "user", "developer", "assistant")]
    first = harmony.encode(messages)
    expected = list(first)
    first[:] = [0] * len(first)
    assert harmony.encode(messages) == expected == Harmony(tokenizer).encode(messages)
    for left, right in pairwise(messages):
        assert harmony.encode([left, right]) == harmony.encode([left]) + harmony.encode([right])
    assert harmony.encode([replace(messages[0], content="")]) != harmony.encode([messages[0]])
