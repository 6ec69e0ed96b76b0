"""Texts that a drafter is fed in pieces, as the engine does it."""

import torch

from firesteel.model.drafters.drafter import DraftContext
from firesteel.types import Batch, KvView
from tests.model.drafters.heads import TARGET

PAGE_SIZE = 4
LENGTH = 40  # tokens of a text
PAGES_EACH = 12


class Texts:
    """Texts of random tokens with random states of the target, each with pages of its own, fed in pieces."""

    def __init__(self, drafter, num_texts, seed):
        generator = torch.Generator().manual_seed(seed)
        width = len(drafter.boundaries) * TARGET.hidden_size
        self.tokens = torch.randint(TARGET.vocab_size, (num_texts, LENGTH), generator=generator)
        self.features = torch.randn(num_texts, LENGTH, width, generator=generator)
        self.table = 1 + torch.randperm(num_texts * PAGES_EACH, generator=generator).view(num_texts, PAGES_EACH)
        self.fed = [0] * num_texts

    def context(self, lens, padding=0):
        """Returns the next `lens` tokens of each text; rows of padding carry NaN."""
        spans = [range(fed, fed + length) for fed, length in zip(self.fed, lens, strict=True)]
        rows = [(text, p) for text, span in enumerate(spans) for p in span]
        text, positions = (torch.tensor(part + (0,) * padding) for part in zip(*rows, strict=True))
        ends = [span.stop for span in spans]
        slots = self.table[text, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
        features = self.features[text, positions]
        if padding:
            slots[-padding:] = -1
            features[-padding:] = torch.nan
        view = KvView(page_table=self.table, slots=slots)
        batch = Batch(
            token_ids=self.tokens[text, positions],
            positions=positions,
            query_starts=torch.tensor([0, *lens]).cumsum(0),
            kv_lens=torch.tensor(ends),
            full=view,
            window=view,
            logit_rows=torch.zeros(0, dtype=torch.int64),
        )
        self.fed = ends
        next_ids = torch.stack([row[end] for row, end in zip(self.tokens, ends, strict=True)])
        followers = self.tokens[text, positions + 1]
        return DraftContext(batch=batch, features=features, followers=followers, next_ids=next_ids)

    def expected(self, oracle, counts):
        return [
            oracle.draft(row[: fed + 1].tolist(), features[:fed], count)
            for row, features, fed, count in zip(self.tokens, self.features, self.fed, counts, strict=True)
        ]
