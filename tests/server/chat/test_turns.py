"""Messages of a chat from the parts of a conversation."""

from firesteel.server.chat.turns import ConversationBuilder
from firesteel.server.openai.requests import AssistantMessage, CalledFunction, ToolCall, UserMessage


def call(name):
    return ToolCall(id=name, function=CalledFunction(name="f", arguments="{}"))


def test_parts_of_the_assistant_are_one_message_while_their_order_allows_it():
    chat = ConversationBuilder()
    chat.add_reasoning("r")
    chat.add_content("c")
    chat.add_call(call("1"))
    chat.add_call(call("2"))
    [message] = chat.messages
    assert (message.reasoning, message.content) == ("r", "c")
    assert [call.id for call in message.tool_calls] == ["1", "2"]


def test_call_is_added_to_the_list_in_place():
    """A copy per call took most of a second for 16,000 calls."""
    chat = ConversationBuilder()
    chat.add_call(call("1"))
    [message] = chat.messages
    calls = message.tool_calls
    chat.add_call(call("2"))
    assert message.tool_calls is calls


def test_part_that_would_come_too_late_begins_a_message():
    chat = ConversationBuilder()
    chat.add_content("a")
    chat.add_content("b")
    chat.add_reasoning("r")
    chat.add_call(call("1"))
    chat.add_content("c")
    assert [(message.reasoning, message.content) for message in chat.messages] == [
        (None, "a"),
        (None, "b"),
        ("r", None),
        (None, "c"),
    ]


def test_other_messages_end_that_of_the_assistant():
    chat = ConversationBuilder()
    chat.add_reasoning("r")
    chat.add(UserMessage(content="hi"))
    chat.add_call(call("1"))
    assert [type(message) for message in chat.messages] == [AssistantMessage, UserMessage, AssistantMessage]
