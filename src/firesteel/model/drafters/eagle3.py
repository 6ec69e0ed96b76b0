"""The Eagle3 drafter: one Llama layer that continues the target's own states.

Row p reads the target's states at position p and the embedding of the token at p + 1, and keeps its keys and
values for position p. The last row of a request gives the first draft. Each further draft reads the embedding of
the draft before and the head's own state instead of the target's, at the next position.

Shape letters: T tokens, R requests, F features, H hidden of the head, Q query heads, K kv heads, D head dim, S page
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from firesteel.device import DeviceSpec
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.ops.attention_operands import AttentionOperands
from firesteel.kernels.ops.linear_operands import LinearOperands
from firesteel.kernels.ops.rms_norm import RmsNormOperands
from firesteel.kernels.ops.rope_kv_write import RopeKvWriteOperands
from firesteel.model.drafters.drafter import DraftContext, upload_counts
from firesteel.model.drafters.eagle3_spec import Eagle3Spec, read_eagle3_spec
from firesteel.model.drafters.eagle3_weights import Eagle3Weights, load_eagle3_weights
from firesteel.model.drafters.gpu_heads import check_gpu_heads
from firesteel.model.gpt_oss import GptOss
from firesteel.model.host_batch import NOT_STORED

MOST_TOKENS = 7  # one less than the rows of a request that a decoding step verifies


def load_eagle3(directory: Path, model: GptOss, device: DeviceSpec) -> Eagle3:
    """Loads the head in `directory` for a target; raises DrafterError if it is damaged or of another model."""
    spec = read_eagle3_spec(directory)
    num_sharing = spec.num_heads // spec.num_kv_heads
    check_gpu_heads(directory, device, head_dim=spec.head_dim, num_sharing=num_sharing)
    return Eagle3(spec, load_eagle3_weights(directory, spec, model.spec, device), model)


class Eagle3:
    """A head for one target, with whose ops and number types it computes."""

    name = "eagle3"
    is_one_pass = False
    k_pages: Tensor  # [P, K, S, D], of attach
    v_pages: Tensor

    def __init__(self, spec: Eagle3Spec, weights: Eagle3Weights, model: GptOss) -> None:
        self.spec, self.weights, self.model = spec, weights, model
        self.kernels = model.kernels
        self.boundaries = weights.states.boundaries
        self.usual_acceptance = spec.usual_acceptance
        self.most_tokens = MOST_TOKENS
        if spec.published is not None and spec.published.most_tokens is not None:
            self.most_tokens = spec.published.most_tokens
        self.reach = self.most_tokens - 1  # the first draft's row is the last of the text
        context = model.table.shape[0] + self.reach
        self.table = spec.rope.table(spec.head_dim, context, model.table.device)
        self.embedding = model.weights.embedding if weights.embedding is None else weights.embedding
        self.lm_head = self._find_lm_head()

    def _find_lm_head(self) -> Tensor | Mxfp4Weight:
        if self.weights.lm_head is not None:
            return self.weights.lm_head
        return self.embedding if self.spec.ties_lm_head else self.model.weights.lm_head

    def page_bytes(self, page_size: int) -> int:
        """Returns the bytes of keys and values of a page."""
        return 2 * self.spec.kv_size * page_size * self.model.dtype.itemsize

    def attach(self, num_pages: int, page_size: int, device: torch.device) -> None:
        """Allocates keys and values [P, K, S, D] for the pages of the target's full layers."""
        shape = (2, num_pages, self.spec.num_kv_heads, page_size, self.spec.head_dim)
        self.k_pages, self.v_pages = torch.zeros(shape, dtype=self.model.dtype, device=device)

    def draft(self, context: DraftContext, counts: Sequence[int]) -> Tensor:
        """Stores keys and values of the context's rows; returns drafted tokens [R, max(counts)] int64."""
        most = max(counts, default=0)
        if most > self.most_tokens:
            raise ValueError(f"{most} tokens are wanted, this head drafts at most {self.most_tokens}")
        return self.compute(context, upload_counts(counts, context.next_ids.device), most)

    def compute(self, context: DraftContext, wanted: Tensor, most: int) -> Tensor:
        batch = context.batch
        embeds = self._embed(context.followers)
        mixed, hidden = self._join(embeds, self._combine(context.features))
        q = self._store(mixed, batch.positions, batch.full.slots)
        if most == 0:
            return context.next_ids.new_empty(len(context.next_ids), 0)
        last = (batch.query_starts[1:] - 1).clamp(min=0)
        start = batch.kv_lens - 1
        rows = torch.arange(len(last) + 1, device=last.device)
        nowhere = wanted.new_full((), NOT_STORED)
        drafts: list[Tensor] = []
        q, hidden = q[last], hidden[last]
        for number in range(most):
            # A request that wants no more reads and writes nothing of its own: its page table may be too short.
            is_wanted = wanted > number
            positions = (start + number) * is_wanted
            if number > 0:
                mixed, hidden = self._join(self._embed(drafts[-1]), hidden)
                slots = torch.where(is_wanted, self._find_slots(context, positions), nowhere)
                q = self._store(mixed, positions, slots)
            attended = self._attend(q, context, rows, positions + 1)
            normed, hidden = self._end_layer(attended, hidden)
            drafts.append(self._choose(normed))
        return torch.stack(drafts, dim=1)

    def _embed(self, token_ids: Tensor) -> Tensor:
        return self.embedding[token_ids].to(self.model.dtype)

    def _combine(self, features: Tensor) -> Tensor:
        """Returns the head's hidden rows [T, H] from the target's states [T, F]."""
        weights, states = self.weights, self.weights.states
        if states.is_final:
            features = self._norm(features, self.model.weights.norm, self.model.spec.rms_eps)
        if weights.input_norm is not None:
            features = self._norm(features, weights.input_norm)
        if weights.state_norms is not None:
            parts = features.chunk(len(weights.state_norms), dim=-1)
            pairs = zip(parts, weights.state_norms, strict=True)
            features = torch.cat([self._norm(part, weight) for part, weight in pairs], dim=-1)
        return features if weights.fc is None else self._multiply(features, weights.fc)

    def _join(self, embeds: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what attention reads [.., 2H], and the residual [.., H]."""
        normed = self._norm(hidden, self.weights.hidden_norm)
        residual = normed if self.spec.norm_before_residual else hidden
        return torch.cat((self._norm(embeds, self.weights.embed_norm), normed), dim=-1), residual

    def _store(self, mixed: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
        """Writes keys and values, and returns queries [.., Q, D]."""
        spec = self.spec
        qkv = self._multiply(mixed, self.weights.qkv, self.weights.qkv_bias).unflatten(-1, (-1, spec.head_dim))
        q, k, v = qkv.split([spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        operands = RopeKvWriteOperands(
            q=q,
            k=k,
            v=v,
            positions=positions,
            table=self.table,
            k_pages=self.k_pages,
            v_pages=self.v_pages,
            slots=slots,
        )
        rotated, *_ = self.kernels.rope_kv_write(operands)
        return rotated

    def _find_slots(self, context: DraftContext, positions: Tensor) -> Tensor:
        page_size = self.k_pages.shape[2]
        pages = context.batch.full.page_table.gather(1, (positions // page_size)[:, None])[:, 0]
        return torch.add(positions % page_size, pages, alpha=page_size)

    def _attend(self, q: Tensor, context: DraftContext, rows: Tensor, kv_lens: Tensor) -> Tensor:
        """Returns the mixed values [R, Q D] of one row per request."""
        operands = AttentionOperands(
            q=q,
            k_pages=self.k_pages,
            v_pages=self.v_pages,
            page_table=context.batch.full.page_table,
            query_starts=rows,
            kv_lens=kv_lens,
            sinks=None,
            window=None,
            scale=self.spec.head_dim**-0.5,
        )
        return self.kernels.attention(operands).flatten(1)

    def _end_layer(self, attended: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the rows that lm_head reads, and those that the next draft reads."""
        weights = self.weights
        update = self._multiply(attended, weights.o, weights.o_bias)
        x, residual = self._add(residual, update, weights.post_norm)
        gate, up = self._multiply(x, weights.gate_up).chunk(2, dim=-1)
        update = self._multiply(functional.silu(gate) * up, weights.down)
        normed, residual = self._add(residual, update, weights.norm)
        return normed, normed if self.spec.norm_output else residual

    def _choose(self, normed: Tensor) -> Tensor:
        """Returns the most likely token of each row, as the target numbers it."""
        drafted = self.model.project(normed, self.lm_head, None).argmax(-1)
        return drafted if self.weights.target_ids is None else self.weights.target_ids[drafted]

    def _multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.kernels.linear(LinearOperands(x=x, weight=weight, bias=bias))

    def _norm(self, x: Tensor, weight: Tensor, eps: float | None = None) -> Tensor:
        eps = self.spec.rms_eps if eps is None else eps
        return self.kernels.rms_norm(RmsNormOperands(residual=x, weight=weight, eps=eps))[0]

    def _add(self, residual: Tensor, update: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        operands = RmsNormOperands(residual=residual, update=update, weight=weight, eps=self.spec.rms_eps)
        return self.kernels.rms_norm(operands)
