"""Changes to logits that requests ask for before the draw: penalties, bias, barred and allowed tokens.

Rows that ask for nothing cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

import numpy as np
import torch
from torch import Tensor

from firesteel.engine.sample.row import SampleRow, TokenIds, split_rows
from firesteel.engine.transfer import upload, upload_floats, upload_ints

Rows = Sequence[SampleRow]


def adjust(logits: Tensor, rows: Rows) -> Tensor:
    """Returns `logits` [R, V] fp32 themselves if no row asks for a change, else a changed copy."""
    penalized = _find_rows(rows, lambda row: row.params.has_penalties)
    biased = _find_rows(rows, lambda row: bool(row.params.logit_bias))
    barred = _find_rows(rows, lambda row: len(row.barred) > 0)
    chosen = _find_rows(rows, lambda row: row.params.allowed_token_ids is not None)
    masked = _find_rows(rows, lambda row: row.allowed is not None)
    if not (penalized or biased or barred or chosen or masked):
        return logits
    adjusted = logits.clone(memory_format=torch.contiguous_format)
    _penalize_rows(adjusted, rows, penalized)
    if biased:
        values = upload_floats(
            [bias for row in biased for bias in rows[row].params.logit_bias.values()], logits.device
        )
        ids = {row: list(rows[row].params.logit_bias) for row in biased}
        adjusted.view(-1).index_add_(0, _places(ids, adjusted), values)
    if barred:
        adjusted.view(-1).index_fill_(0, _places({row: list(rows[row].barred) for row in barred}, adjusted), -inf)
    if chosen:
        _keep(adjusted, {row: rows[row].params.allowed_token_ids or () for row in chosen})
    for is_on_host in (True, False):
        _mask(adjusted, rows, [row for row in masked if _allowed(rows[row]).is_cpu == is_on_host])
    return adjusted


def _find_rows(rows: Rows, asks: Callable[[SampleRow], bool]) -> list[int]:
    return [index for index, row in enumerate(rows) if asks(row)]


def _penalize_rows(logits: Tensor, rows: Rows, penalized: list[int]) -> None:
    for part in split_rows(penalized, logits.shape[-1]):
        index = upload_ints(part, logits.device)
        logits.index_copy_(0, index, _penalize(logits[index], [rows[row] for row in part]))


def _penalize(logits: Tensor, rows: Rows) -> Tensor:
    """Penalizes repetition in prompt and new tokens, as Hugging Face; the others in new tokens, as OpenAI."""
    params = [row.params for row in rows]
    settings = [
        [min(max(wanted.repetition_penalty, 1e-30), 1e30) for wanted in params],  # what fp32 can divide by
        [wanted.presence_penalty for wanted in params],
        [wanted.frequency_penalty for wanted in params],
    ]
    repetition, presence, frequency = upload_floats(settings, logits.device)[..., None]
    counts = _count({i: row.token_ids[row.num_prompt :] for i, row in enumerate(rows)}, logits)
    is_new = counts > 0
    if any(wanted.repetition_penalty != 1 for wanted in params):
        prompts = {i: row.token_ids[: row.num_prompt] for i, row in enumerate(rows)}
        asking = {i: ids for i, ids in prompts.items() if params[i].repetition_penalty != 1}
        is_seen = is_new | (_count(asking, logits) > 0)
        logits = torch.where(is_seen, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
    return logits.sub(frequency * counts).sub_(presence * is_new)


def _count(token_ids: Mapping[int, TokenIds], logits: Tensor) -> Tensor:
    """Returns [N, V] int32: how often each token occurs in the list of its row."""
    counts = torch.zeros_like(logits, dtype=torch.int32, memory_format=torch.contiguous_format)
    places = _places(token_ids, logits)
    counts.view(-1).index_add_(0, places, torch.ones_like(places, dtype=torch.int32))
    return counts


def _places(token_ids: Mapping[int, TokenIds], logits: Tensor) -> Tensor:
    """Returns int64 indices on the device: where the tokens of each row lie in the flat logits."""
    vocab_size = logits.shape[-1]
    lists = [np.asarray(ids, dtype=np.int64) for ids in token_ids.values()]
    flat = np.concatenate([np.empty(0, np.int64), *lists])
    if flat.size and not 0 <= flat.min() <= flat.max() < vocab_size:
        raise ValueError(f"token ids {flat.min()} to {flat.max()} do not fit a vocabulary of {vocab_size}")
    starts = np.repeat(np.fromiter(token_ids, np.int64), [ids.size for ids in lists]) * vocab_size
    return upload(flat + starts, logits.device)


def _keep(logits: Tensor, token_ids: Mapping[int, TokenIds]) -> None:
    """Keeps only the given tokens of each given row, in place."""
    places, flat = _places(token_ids, logits), logits.view(-1)
    kept = flat[places]
    logits.index_fill_(0, upload_ints(list(token_ids), logits.device), -inf)
    flat.index_copy_(0, places, kept)


def _mask(logits: Tensor, rows: Rows, masked: list[int]) -> None:
    """Applies the masks of the rows `masked`, in place; they must lie on one device."""
    if masked:
        allowed = upload(torch.stack([_allowed(rows[row]) for row in masked]), logits.device)
        index = upload_ints(masked, logits.device)
        logits.index_copy_(0, index, logits[index].masked_fill_(~allowed, -inf))


def _allowed(row: SampleRow) -> Tensor:
    assert row.allowed is not None
    return row.allowed
