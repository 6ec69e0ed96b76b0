"""Draws the next tokens from logits, all rows at once on the device.

    sampler = Sampler(vocab_size, device, draw)  # once; `draw` is the op of that name
    sampled = sampler.sample(logits, rows)     # logits [R, V] fp32, one SampleRow per row; does not wait
    sampled.token_ids                          # [R] int64 on the device, always in 0..V-1
    for result in sampled.read(): ...          # waits for the device; SpanResult(token_id, logprobs, error)

SampleRow(params=, position=, name=, token_ids=, num_prompt=, stop_token_ids=, allowed=)
    position         index of the next token, from 0; it and the seed alone determine the random numbers
    name             name of the request, for errors
    token_ids        prompt and generated tokens; read only if `params.reads_tokens`
    num_prompt       number of prompt tokens; position - num_prompt tokens were generated
    stop_token_ids   tokens that end the request: `params.stop_ids(eos_token_ids)`; barred before params.min_tokens
    allowed          bool [V], on the CPU or the device: tokens that the grammar allows; None allows all.
                     params.allowed_token_ids restricts them further

SpanResult.error names the request if no token can be drawn: the logits hold NaN or +inf, or no token is allowed.
Other rows are not affected. For the logprobs of a prompt call `score` in logprobs.py with row t of its logits and
token t + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from firesteel.engine.sample.adjustments import adjust
from firesteel.engine.sample.logprobs import Logprobs, score
from firesteel.engine.sample.pending import PendingTokens
from firesteel.engine.sample.row import SampleRow, rows_at_once
from firesteel.engine.sample.truncation import truncate
from firesteel.engine.transfer import upload_floats, upload_ints
from firesteel.errors import UserError
from firesteel.kernels.noise import LEAST_TEMPERATURE, MOST_TEMPERATURE, stream_key, token_steps
from firesteel.kernels.ops.draw import DrawOperands
from firesteel.kernels.ops.draw import draw as plain_draw
from firesteel.types import SamplingParams, SpanResult

__all__ = ["SampleRow", "Sampled", "Sampler", "sample"]

Draw = Callable[[DrawOperands], Tensor]  # kernels/ops/draw.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The tokens of one step, on the device."""

    rows: Sequence[SampleRow]
    token_ids: Tensor  # [R] int64
    best: Tensor  # [R] fp32, the largest logit that could be drawn; not finite if none can
    logprobs: Logprobs | None  # of the rows that request them, in their order

    def fetch(self) -> PendingTokens:
        """Starts the copies to the host and does not wait for them."""
        return PendingTokens.begin(self.rows, self.token_ids, self.best, self.logprobs)

    def read(self) -> list[SpanResult]:
        """Waits for the device."""
        return self.fetch().read()


class Sampler:
    """Stateless: the same rows always give the same tokens."""

    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        draw: Draw = plain_draw.reference,
        *,
        by_row: bool = False,
    ) -> None:
        """`by_row` scores each row alone, and on a CPU draws from it alone, so that no other row changes a bit."""
        self.vocab_size = vocab_size
        self.rows_scored = 1 if by_row else rows_at_once(vocab_size)
        # torch on a CPU computes the last values of a tensor otherwise than the others.
        self.rows_drawn = 1 if by_row and device.type == "cpu" else rows_at_once(vocab_size)
        self._draw = draw
        self._steps = token_steps(vocab_size, device)

    @torch.no_grad()
    def sample(self, logits: Tensor, rows: Sequence[SampleRow], best: Tensor | None = None) -> Sampled:
        """Leaves `logits` unchanged and does not wait; `best` [R] is the maximum of each row, if known."""
        self._check(logits, rows)
        adjusted = adjust(logits, rows)
        if best is None or adjusted is not logits:
            best = adjusted.amax(dim=-1)
        at_once = self.rows_drawn
        drawn = [
            self._draw_rows(logits_part, best_part, rows[number * at_once :][:at_once])
            for number, (logits_part, best_part) in enumerate(
                zip(adjusted.split(at_once), best.split(at_once), strict=True)
            )
        ]
        token_ids = torch.cat(drawn) if len(drawn) != 1 else drawn[0]
        return Sampled(rows=rows, token_ids=token_ids, best=best, logprobs=self._score(logits, token_ids, rows))

    def prepare(self) -> None:
        """Draws once from zeros, so that no request waits for the compiler."""
        row = SampleRow(params=SamplingParams(temperature=1.0), position=0)
        self.sample(torch.zeros(1, self.vocab_size, device=self._steps.device), [row])

    def _draw_rows(self, logits: Tensor, best: Tensor, rows: Sequence[SampleRow]) -> Tensor:
        device, params = logits.device, [row.params for row in rows]
        if not any(wanted.temperature for wanted in params):
            return logits.argmax(dim=-1)  # ties go to the lowest id
        temperatures = upload_floats([_clamp_temperature(wanted.temperature) for wanted in params], device)
        keys = upload_ints([stream_key(row.params.seed, row.position) for row in rows], device)
        operands = DrawOperands(
            logits=_truncated(logits, best, temperatures, params),
            best=best,
            temperatures=temperatures,
            keys=keys,
            steps=self._steps,
        )
        return self._draw(operands)

    def _score(self, logits: Tensor, token_ids: Tensor, rows: Sequence[SampleRow]) -> Logprobs | None:
        asking = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
        if not asking:
            return None
        index = upload_ints(asking, logits.device)
        num_top = max(rows[row].params.logprobs or 0 for row in asking)
        return score(logits[index], token_ids[index], num_top, self.rows_scored)

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
    """Draws one token per row of logits [R, V] fp32 without a history; `positions` are those of the next tokens."""
    rows = [
        SampleRow(params=wanted, position=position, name=f"row {index}")
        for index, (wanted, position) in enumerate(zip(params, positions, strict=True))
    ]
    token_ids = []
    for result in Sampler(logits.shape[-1], logits.device).sample(logits, rows).read():
        if result.token_id is None:
            raise UserError(result.error or "no token was drawn")
        token_ids.append(result.token_id)
    return token_ids


def _clamp_temperature(temperature: float) -> float:
    """Clamps to the range of fp32: 0 is greedy, and no other value becomes 0 or infinite."""
    return min(max(temperature, LEAST_TEMPERATURE), MOST_TEMPERATURE) if temperature else 0.0


def _truncated(logits: Tensor, best: Tensor, temperatures: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Returns `logits` themselves if no row drops tokens, else a copy with -inf for dropped tokens."""
    cut = [row for row, wanted in enumerate(params) if wanted.temperature and wanted.leaves_out]
    if not cut:
        return logits
    index = upload_ints(cut, logits.device)
    own = logits[index]
    # The maximum score is 0, so that a temperature near 0 cannot overflow it.
    scores = (own - best[index, None]).div_(temperatures[index, None])
    kept = truncate(scores, [params[row] for row in cut])
    return logits.index_copy(0, index, own.masked_fill_(kept.isneginf(), -inf))
