"""A chat partner loaded in this process; knows tokens, not the terminal."""

from __future__ import annotations

from collections.abc import Generator

from firesteel.cli.chat_partner import Piece, Turn, Wishes
from firesteel.llm import LLM


class LocalPartner:
    def __init__(self, llm: LLM) -> None:
        self.name = llm.settings.config.model.model

    def answer(self, turns: list[Turn], wishes: Wishes) -> Generator[Piece, None, None]:
        yield Piece(content="")
