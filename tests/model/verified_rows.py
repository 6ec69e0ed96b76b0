"""Steps that verify drafted tokens: batches with a row per token, and the same tokens as a prompt."""

from dataclasses import replace

import torch

from firesteel.measure.decode.steps import Pages, first_batch
from firesteel.types import KvView


def rows_of(drafts, contexts, pages, cache):
    """Returns a batch with a row per token; `drafts` are the tokens of each request, which holds `contexts`."""
    owners = [request for request, tokens in enumerate(drafts) for _ in tokens]
    positions = [
        context + row for context, tokens in zip(contexts, drafts, strict=True) for row in range(len(tokens))
    ]
    tables = Pages(full=pages.full[owners], window=pages.window[owners], count=pages.count)
    return first_batch([token for tokens in drafts for token in tokens], positions, tables, cache)


def prompts_of(drafts, contexts, pages, cache):
    """Returns the batch in which the tokens of a request are one piece of its text."""
    rows, device = rows_of(drafts, contexts, pages, cache), cache.keys[0].device
    counts = torch.tensor([len(tokens) for tokens in drafts])
    return replace(
        rows,
        query_starts=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).to(device),
        kv_lens=(torch.tensor(contexts) + counts).to(device),
        full=KvView(page_table=pages.full.to(device), slots=rows.full.slots),
        window=KvView(page_table=pages.window.to(device), slots=rows.window.slots),
    )
