"""Harmony against openai-harmony: equal tokens when rendering, equal messages when parsing."""

import random
from itertools import product

import pytest

from firesteel.chat.harmony import Message
from tests.chat.conversations import Conversations, our_message, random_completion


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


def assert_same_parsing(harmony, library, schema_maker, seeds: range) -> None:
    for seed in seeds:
        messages = [ours for ours, _ in Conversations(random.Random(seed), schema_maker).sensible()]
        token_ids = harmony.encode(messages, keep_reasoning=True)
        assert harmony.decode(token_ids, role=None) == messages, f"seed {seed}"
        theirs = library.parse_messages_from_completion_tokens(token_ids)
        assert [our_message(message) for message in theirs] == messages, f"seed {seed}"


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
