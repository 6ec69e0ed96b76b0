"""Builds the messages of a chat from the parts of a conversation, in their order."""

from __future__ import annotations

from firesteel.server.openai.requests import AssistantMessage, ChatMessage, ToolCall


class ConversationBuilder:
    """Joins consecutive parts of the assistant into one message, as far as it can hold them in their order.

    A message holds its reasoning, then its content, then its calls.
    """

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self._open: AssistantMessage | None = None

    def add(self, message: ChatMessage) -> None:
        """Adds a message of another role."""
        self.messages.append(message)
        self._open = None

    def add_reasoning(self, text: str) -> None:
        message = self._open
        if message is None or message.reasoning is not None or self._has_content(message):
            message = self._begin()
        message.reasoning = text

    def add_content(self, text: str) -> None:
        message = self._open
        if message is None or self._has_content(message):
            message = self._begin()
        message.content = text

    def add_call(self, call: ToolCall) -> None:
        message = self._open or self._begin()
        if message.tool_calls is None:
            message.tool_calls = []
        message.tool_calls.append(call)

    def _has_content(self, message: AssistantMessage) -> bool:
        return message.content is not None or message.tool_calls is not None

    def _begin(self) -> AssistantMessage:
        self._open = AssistantMessage()
        self.messages.append(self._open)
        return self._open
