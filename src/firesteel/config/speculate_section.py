"""Settings of speculation: how tokens are drafted, and how many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from firesteel.config.checks import between, one_of
from firesteel.config.declare import setting
from firesteel.errors import UserError

DRAFT_KINDS = ("off", "ngram", "eagle3", "dflash", "auto")
WITHOUT_MODEL = ("off", "ngram")  # kinds of drafts that read no draft model


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculateConfig:
    speculate: str = setting(
        "off",
        "drafts of tokens that one step verifies: off, ngram (copies of earlier text), eagle3 or dflash (a draft "
        "model), auto (that of --draft-model, else ngram)",
        env="FIRESTEEL_SPECULATE",
        is_common=True,
        check=one_of(*DRAFT_KINDS),
    )
    draft_model: str = setting(
        "",
        "checkpoint folder of the draft model, or its name in the local Hugging Face cache; empty: that of "
        "kindling, which is built in",
        env="FIRESTEEL_DRAFT_MODEL",
        is_common=True,
    )
    num_speculative_tokens: int = setting(
        0,
        "maximum number of tokens drafted per request and step; 0: 7 for ngram, 3 for eagle3, that of the draft "
        "model for dflash",
        env="FIRESTEEL_NUM_SPECULATIVE_TOKENS",
        check=between(0, 15),
    )
    adapt_speculation: bool = setting(
        True,
        "number of drafted tokens chosen per step by measured cost and acceptance, down to none; off: always "
        "num_speculative_tokens",
        env="FIRESTEEL_ADAPT_SPECULATION",
    )

    def check(self, origins: Mapping[str, str] | None = None) -> None:
        """Raises if settings of drafts were given that the kind of drafts does not read.

        `origins` says where each setting is from, as far as that is known.
        """
        unread = {
            "num_speculative_tokens": self.num_speculative_tokens > 0 and self.speculate == "off",
            "adapt_speculation": not self.adapt_speculation and self.speculate == "off",
            "draft_model": bool(self.draft_model) and self.speculate in WITHOUT_MODEL,
        }
        for name in (name for name, is_unread in unread.items() if is_unread):
            origin = f" ({origins[name]})" if origins is not None else ""
            why = "nothing is drafted" if self.speculate == "off" else "no model is used"
            kind = "auto" if name == "draft_model" else "ngram"
            raise UserError(
                f"{name} = {getattr(self, name)!r}{origin}: {why} with --speculate {self.speculate}: give "
                f"--speculate {kind} or another kind, or leave it out"
            )
