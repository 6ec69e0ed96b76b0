"""Next tokens from logits, all rows at once on the device; knows token ids, not text and not the model.

    sampler = Sampler(vocab_size, device, draw)  # once; `draw` is the op of that name
    sampled = sampler.sample(logits, rows)     # logits [R, V] fp32, one SampleRow a row; waits for nothing
    sampled.token_ids                          # [R] int64 on the device, always in 0..V-1
    for drawn in sampled.read(): ...           # waits for the device; Drawn(token_id, logprobs, error)

SampleRow(params=, position=, name=, token_ids=, num_prompt=, stop_token_ids=, allowed=)
    position         of the token to come, from 0; with the seed it decides the draw, nothing else does
    name             of the request, for errors
    token_ids        prompt and what was generated so far; read only where `params.has_penalties`
    num_prompt       so many of them are the prompt's; generated so far = position - num_prompt
    stop_token_ids   what ends the request: `params.stop_ids(eos_token_ids)`; barred before params.min_tokens
    allowed          bool [V], on the CPU or the device: tokens that may be drawn (grammars); None allows all;
                     of these, params.allowed_token_ids

Drawn.error is a sentence that names the request where no token can be drawn: logits that hold NaN or +inf, or no
token allowed. The other rows are not disturbed. For the logprobs of a prompt call `score` in logprobs.py with
row t of its logits and token t + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from firesteel.engine.sample.adjustments import adjust
from firesteel.engine.sample.logprobs import Logprobs, score
from firesteel.engine.sample.pending import Fetched
from firesteel.engine.sample.pieces import rows_at_once
from firesteel.engine.sample.row import Drawn, SampleRow
from firesteel.engine.sample.truncation import truncate
from firesteel.engine.transfer import upload_floats, upload_ints
from firesteel.errors import UserError
from firesteel.kernels.noise import LEAST_TEMPERATURE, MOST_TEMPERATURE, stream_key, token_steps
from firesteel.kernels.ops.draw import draw as plain_draw
from firesteel.types import SamplingParams

__all__ = ["Drawn", "SampleRow", "Sampled", "Sampler", "sample"]

Draw = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]  # kernels/ops/draw.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The tokens of one step, on the device."""

    rows: Sequence[SampleRow]
    token_ids: Tensor  # [R] int64
    best: Tensor  # [R] fp32, the largest logit that could be drawn; not finite where none can
    logprobs: Logprobs | None  # of the rows that ask, in their order

    def fetch(self) -> Fetched:
        """Starts the copies to the host; waits for nothing."""
        return Fetched.begin(self.rows, self.token_ids, self.best, self.logprobs)

    def read(self) -> list[Drawn]:
        """Waits for the device."""
        return self.fetch().read()


class Sampler:
    """Keeps nothing of a request: the same rows give the same tokens at any time."""

    def __init__(self, vocab_size: int, device: torch.device, draw: Draw = plain_draw.reference) -> None:
        self.vocab_size = vocab_size
        self._draw = draw
        self._steps = token_steps(vocab_size, device)

    @torch.no_grad()
    def sample(self, logits: Tensor, rows: Sequence[SampleRow], best: Tensor | None = None) -> Sampled:
        """Leaves `logits` as they are and waits for nothing; `best` [R] is the largest of each row, where known."""
        self._check(logits, rows)
        adjusted = adjust(logits, rows)
        if best is None or adjusted is not logits:
            best = adjusted.amax(dim=-1)
        at_once = rows_at_once(self.vocab_size)
        drawn = [
            self._draw_rows(logits_part, best_part, rows[number * at_once :][:at_once])
            for number, (logits_part, best_part) in enumerate(
                zip(adjusted.split(at_once), best.split(at_once), strict=True)
            )
        ]
        token_ids = torch.cat(drawn) if len(drawn) != 1 else drawn[0]
        return Sampled(rows=rows, token_ids=token_ids, best=best, logprobs=_score(logits, token_ids, rows))

    def prepare(self) -> None:
        """A draw from nothing, so that no request waits for a compiler."""
        row = SampleRow(params=SamplingParams(temperature=1.0), position=0)
        self.sample(torch.zeros(1, self.vocab_size, device=self._steps.device), [row])

    def _draw_rows(self, logits: Tensor, best: Tensor, rows: Sequence[SampleRow]) -> Tensor:
        device, params = logits.device, [row.params for row in rows]
        if not any(one.temperature for one in params):
            return logits.argmax(dim=-1)  # of equals the lowest id
        temperatures = upload_floats([_bounded(one.temperature) for one in params], device)
        keys = upload_ints([stream_key(row.params.seed, row.position) for row in rows], device)
        return self._draw(_truncated(logits, best, temperatures, params), best, temperatures, keys, self._steps)

    def _check(self, logits: Tensor, rows: Sequence[SampleRow]) -> None:
        if logits.shape != (len(rows), self.vocab_size) or logits.dtype != torch.float32:
            raise ValueError(
                f"logits {tuple(logits.shape)} {logits.dtype} for {len(rows)} rows of {self.vocab_size}"
            )
        for row in rows:
            mask = row.allowed
            if mask is not None and (mask.shape != (self.vocab_size,) or mask.dtype != torch.bool):
                raise ValueError(f"{row.name}: mask of allowed tokens is {tuple(mask.shape)} {mask.dtype}")


def sample(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """One token a row of logits [R, V] fp32, without a history; `positions` are those of the tokens to come."""
    rows = [
        SampleRow(params=one, position=position, name=f"row {index}")
        for index, (one, position) in enumerate(zip(params, positions, strict=True))
    ]
    drawn = Sampler(logits.shape[-1], logits.device).sample(logits, rows).read()
    for one in drawn:
        if one.error is not None:
            raise UserError(one.error)
    return [one.token_id for one in drawn]


def _bounded(temperature: float) -> float:
    """As fp32 can hold it: 0 is greedy, and nothing else becomes 0 or infinite."""
    return min(max(temperature, LEAST_TEMPERATURE), MOST_TEMPERATURE) if temperature else 0.0


def _truncated(logits: Tensor, best: Tensor, temperatures: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """`logits` themselves where no row leaves tokens out, else a copy with -inf for those."""
    cut = [row for row, one in enumerate(params) if one.temperature and one.leaves_out]
    if not cut:
        return logits
    index = upload_ints(cut, logits.device)
    mine = logits[index]
    # The largest score is 0, so a temperature near 0 cannot overflow it.
    scores = (mine - best[index, None]).div_(temperatures[index, None])
    kept = truncate(scores, [params[row] for row in cut])
    return logits.index_copy(0, index, mine.masked_fill_(kept.isneginf(), -inf))


def _score(logits: Tensor, token_ids: Tensor, rows: Sequence[SampleRow]) -> Logprobs | None:
    asking = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
    if not asking:
        return None
    index = upload_ints(asking, logits.device)
    return score(logits[index], token_ids[index], max(rows[row].params.logprobs or 0 for row in asking))
