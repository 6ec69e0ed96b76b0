"""Builds the tensors of one step from a plan."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from firesteel.engine.transfer import upload
from firesteel.model.host_batch import ALIGNED, HostBatch, Ints
from firesteel.types import Batch, KvView, Plan, Span


def build_batch(plan: Plan, page_size: int, device: torch.device, reach: int = 0) -> Batch:
    """Builds a batch: all indices are computed on the host and uploaded in one copy.

    Page tables hold `reach` tokens more than the longest request.
    """
    return upload_batch(lay_out(plan, page_size, reach), device)


def lay_out_rows(plan: Plan, page_size: int) -> HostBatch:
    """Returns a batch of as many requests as the plan has tokens: each attends to those before it in its text."""
    host = lay_out(plan, page_size)
    counts = np.diff(host.query_starts)
    return HostBatch(
        token_ids=host.token_ids,
        positions=host.positions,
        query_starts=np.arange(host.num_tokens + 1),
        kv_lens=host.positions + 1,
        full_table=host.full_table.repeat(counts, axis=0),
        full_slots=host.full_slots,
        window_table=host.window_table.repeat(counts, axis=0),
        window_slots=host.window_slots,
        logit_rows=np.arange(host.num_tokens),
    )


def upload_batch(host: HostBatch, device: torch.device) -> Batch:
    """Returns the batch on the device, in one copy."""
    parts = [
        host.token_ids,
        host.positions,
        host.query_starts,
        host.kv_lens,
        host.full_table,
        host.full_slots,
        host.window_table,
        host.window_slots,
        host.logit_rows,
    ]
    token_ids, positions, query_starts, kv_lens, *views, logit_rows = _transfer(parts, device)
    return Batch(
        token_ids=token_ids,
        positions=positions,
        query_starts=query_starts,
        kv_lens=kv_lens,
        full=KvView(page_table=views[0], slots=views[1]),
        window=KvView(page_table=views[2], slots=views[3]),
        logit_rows=logit_rows,
    )


def lay_out(plan: Plan, page_size: int, reach: int = 0) -> HostBatch:
    """Returns the numbers of a batch on the host. Tokens that the host does not know yet are 0."""
    spans = plan.spans
    lens = np.array([span.num_tokens for span in spans], dtype=np.int64)
    ends = np.array([span.start for span in spans]) + lens
    starts = np.concatenate(([0], lens.cumsum()))
    positions = np.concatenate([np.arange(span.start, end) for span, end in zip(spans, ends, strict=True)])
    width = -(-(int(ends.max()) + reach) // page_size)
    full = _table([span.full_pages for span in spans], width)
    window = _table([span.window_pages for span in spans], width)
    rows = np.repeat(np.arange(len(spans)), lens)
    return HostBatch(
        token_ids=np.concatenate([_tokens(span) for span in spans]),
        positions=positions,
        query_starts=starts,
        kv_lens=ends,
        full_table=full,
        full_slots=_slots(full, rows, positions, page_size),
        window_table=window,
        window_slots=_slots(window, rows, positions, page_size),
        logit_rows=_logit_rows(spans, starts),
    )


def _tokens(span: Span) -> Ints:
    known = [*span.token_ids[span.start : span.end], *span.draft_ids]
    return np.asarray(known, dtype=np.int64) if known else np.zeros(span.num_tokens, dtype=np.int64)


def _table(pages: list[npt.ArrayLike], width: int) -> Ints:
    """Returns the page table [R, N]; short requests are padded with page 0, which exists and is not read."""
    table = np.zeros((len(pages), width), dtype=np.int64)
    for row, row_pages in zip(table, pages, strict=True):
        held = np.asarray(row_pages, dtype=np.int64)[:width]
        row[: len(held)] = held
    return table


def _slots(table: Ints, rows: Ints, positions: Ints, page_size: int) -> Ints:
    return table[rows, positions // page_size] * page_size + positions % page_size


def _logit_rows(spans: list[Span], starts: Ints) -> Ints:
    ends = zip(spans, starts[1:], strict=True)
    return np.concatenate([np.arange(end - span.num_logits, end) for span, end in ends])


def _transfer(parts: list[Ints], device: torch.device) -> list[Tensor]:
    """Returns `parts` on the device as views of one buffer."""
    sizes = [-(-part.size // ALIGNED) * ALIGNED for part in parts]
    begins = np.concatenate(([0], np.cumsum(sizes))).tolist()
    host = np.zeros(begins[-1], dtype=np.int64)
    for begin, part in zip(begins, parts, strict=False):
        host[begin : begin + part.size] = part.ravel()
    buffer = upload(host, device)
    return [buffer[begin : begin + part.size].view(part.shape) for begin, part in zip(begins, parts, strict=False)]
