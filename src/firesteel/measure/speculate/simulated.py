"""Drafts of a given acceptance on random weights: every token is followed by its number plus one.

`plant_order` makes the network say so, whatever rounding does, so that the text is known in advance and a draft can
be right as often as is asked for. Otherwise the network computes what it always does: every layer, with experts
that depend on the token. Only values of lm_head change.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from firesteel.engine.engine import Engine
from firesteel.engine.schedule.job import Job
from firesteel.engine.speculate.acceptance import Acceptance
from firesteel.engine.speculate.copying import CopiedText, CopyingSpeculator
from firesteel.engine.speculate.ngram import NgramIndex
from firesteel.engine.speculate.policy import DraftPolicy
from firesteel.engine.speculate.speculator import FindJob, Speculator
from firesteel.errors import UserError
from firesteel.measure.tokens.runs import SEED
from firesteel.model.weights import Weights


@torch.inference_mode()
def plant_order(weights: Weights) -> None:
    """Makes token n + 1 by far the most likely one after token n; the last token is followed by the first.

    Row n + 1 of lm_head becomes the embedding of token n. The residual still holds that embedding at the end, since
    random layers add about as much as there was; embeddings of other tokens are nearly orthogonal to it.
    """
    lm_head, embedding = weights.lm_head, weights.embedding
    if not isinstance(lm_head, Tensor):
        raise UserError("simulated drafts need lm_head in bf16: leave lm_head out of --mxfp4-layers")
    lm_head[1:].copy_(embedding[:-1]).mul_(embedding.shape[1] ** -0.5)
    lm_head[0].copy_(embedding[-1]).mul_(embedding.shape[1] ** -0.5)


def follow(token_id: int, count: int, vocab_size: int) -> list[int]:
    """Returns the `count` tokens that come after a token."""
    return [(token_id + 1 + number) % vocab_size for number in range(count)]


class SimulatedIndex(NgramIndex):
    """Drafts for a text of which each token is right with the same chance if those before it are."""

    def __init__(self, token_ids: Sequence[int], *, acceptance: float, vocab_size: int, seed: str) -> None:
        super().__init__(token_ids)
        self.acceptance, self.vocab_size = acceptance, vocab_size
        self._rng = random.Random(seed)

    def find(self) -> int | None:
        return len(self.token_ids)

    def count_common(self, place: int) -> int:
        return 0

    def copy_after(self, place: int, count: int) -> list[int]:
        drafts = follow(self.token_ids[-1], count, self.vocab_size)
        wrong = next((at for at in range(count) if self._rng.random() >= self.acceptance), count)
        return [*drafts[:wrong], *((token + 1) % self.vocab_size for token in drafts[wrong:])]


class SimulatedSpeculator(CopyingSpeculator):
    """The engine's own speculation, with its policy and costs, on drafts of a given acceptance."""

    def __init__(
        self, policy: DraftPolicy, find_job: FindJob, *, most: int, acceptance: float, vocab_size: int
    ) -> None:
        super().__init__(policy, find_job, most=most)
        self.acceptance, self.vocab_size = acceptance, vocab_size

    def _find_text(self, job: Job) -> CopiedText:
        name = job.request.request_id
        text = self._texts.get(name)
        if text is None or text.index.token_ids is not job.token_ids:
            index = SimulatedIndex(
                job.token_ids, acceptance=self.acceptance, vocab_size=self.vocab_size, seed=f"{SEED} {name}"
            )
            text = self._texts[name] = CopiedText(index, [Acceptance(self.policy.overall[0])])
        return text


def use_speculator(engine: Engine, speculator: Speculator | None) -> None:
    """Has the engine draft by `speculator` from now on, or not at all."""
    if engine.has_work:
        raise UserError("drafts can be changed only while the engine has no requests")
    engine.speculator = speculator
    engine.scheduler.find_drafts = None if speculator is None else speculator.find_drafts
