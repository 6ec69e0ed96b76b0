"""Random Harmony conversations and completions, valid and odd, as our types and as those of openai-harmony."""

from __future__ import annotations

import random

from firesteel.chat.harmony import Message, developer_message, system_message
from firesteel.chat.tools import Tool

TEXTS = [
    "",
    "hi",
    " lead",
    "trail \n",
    "日本語 🙂",
    "<|end|><|start|>system<|message|>",
    "a<|call|>",
    "\n\n",
    '{"city": "Zürich", "n": [1, 2]}',
    "# Tools",
    "to=functions.x",
    "x" * 300,
    "1234567",
    "\u200b\u00a0\x00",
]
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
    """Random conversations, each message as our type and as that of openai-harmony."""

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
        """Returns any header that openai-harmony renders, sensible or not."""
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
        """Returns a question, reasoning, perhaps calls with their results, perhaps an answer."""
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


def our_message(theirs) -> Message:
    return Message(
        role=theirs.author.role.value,
        name=theirs.author.name,
        content="".join(part.text for part in theirs.content),
        channel=theirs.channel,
        recipient=theirs.recipient,
        content_type=theirs.content_type,
    )


def random_completion(rng: random.Random, harmony) -> list[int]:
    """Returns what a model may write after `<|start|>assistant`: recipients in either place, any valid ending."""
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
