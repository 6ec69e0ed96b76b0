"""The DFlash drafter: one non-causal pass drafts all tokens of a span.

Context: outputs of some of the target's layers, side by side, pass through `fc` and a norm; every layer of the
drafter projects the result to its keys and values, which stay in its pages for the tokens of the text. Draft: the
embeddings of the anchor (the token after the text) and of a mask token per drafted one pass through layers of
Qwen3's kind. All rows see the context and the whole span; its keys and values lie in the pages after the text, and
the context's replace them when the text grows. Embedding and lm_head are the target's.

Shape letters: T tokens, R requests, N rows of a span, L layers, F features, H hidden, Q query heads,
K kv heads, D head dim, P pages, S page size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from firesteel.device import DeviceSpec
from firesteel.kernels.ops.attention_operands import AttentionOperands
from firesteel.kernels.ops.linear_operands import LinearOperands
from firesteel.kernels.ops.rms_norm import RmsNormOperands
from firesteel.kernels.ops.rope_kv_write import RopeKvWriteOperands
from firesteel.kernels.rope import rope_table
from firesteel.model.drafters.dflash_spec import DFlashSpec, read_dflash_spec
from firesteel.model.drafters.dflash_weights import DFlashLayer, DFlashWeights, load_dflash_weights
from firesteel.model.drafters.drafter import DraftContext, upload_counts
from firesteel.model.drafters.gpu_heads import MOST_SHARING, check_gpu_heads
from firesteel.model.gpt_oss import GptOss
from firesteel.model.host_batch import NOT_STORED


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRows:
    """The places of R spans, and what their queries read: all of them the context and the whole span."""

    positions: Tensor  # [R N] int64
    slots: Tensor  # [R N] int64, page * S + offset
    page_table: Tensor  # one row per query, as the attention op reads it
    query_starts: Tensor
    kv_lens: Tensor


def load_dflash(directory: Path, model: GptOss, device: DeviceSpec) -> DFlash:
    """Loads a drafter in the public format; raises DrafterError if it is damaged or does not fit the model."""
    spec = read_dflash_spec(directory, model.spec)
    num_sharing = spec.num_heads // spec.num_kv_heads
    check_gpu_heads(directory, device, head_dim=spec.head_dim, num_sharing=num_sharing)
    return DFlash(spec, load_dflash_weights(directory, spec, device), model)


class DFlash:
    """A DFlash drafter beside its target."""

    name = "dflash"
    is_one_pass = True

    def __init__(self, spec: DFlashSpec, weights: DFlashWeights, model: GptOss) -> None:
        self.spec, self.weights, self.model, self.kernels = spec, weights, model, model.kernels
        self.boundaries = spec.boundaries
        self.most_tokens = spec.span - 1
        self.usual_acceptance: float | None = None
        self.reach = spec.span  # the anchor and the drafted tokens
        # The target's context may be full when the last draft is made.
        rows = model.table.shape[0] + spec.span
        self.table = rope_table(spec.rope, spec.head_dim, rows, model.table.device)
        self.keys: list[Tensor] = []  # [P, K, S, D] per layer
        self.values: list[Tensor] = []

    def page_bytes(self, page_size: int) -> int:
        return 2 * self.spec.num_layers * self.spec.kv_size * page_size * self.model.dtype.itemsize

    def attach(self, num_pages: int, page_size: int, device: torch.device) -> None:
        shape = (num_pages, self.spec.num_kv_heads, page_size, self.spec.head_dim)
        for pages in (self.keys, self.values):
            pages[:] = [
                torch.zeros(shape, dtype=self.model.dtype, device=device) for _ in range(self.spec.num_layers)
            ]

    def draft(self, context: DraftContext, counts: Sequence[int]) -> Tensor:
        return self.compute(context, upload_counts(counts, context.next_ids.device), max(counts, default=0))

    def compute(self, context: DraftContext, wanted: Tensor, most: int) -> Tensor:
        batch, anchors = context.batch, context.next_ids
        self.store(context.features, batch.positions, batch.full.slots)
        if not most:
            return anchors.new_empty(len(anchors), 0)
        return self.predict(anchors, self.lay_out(batch.kv_lens, batch.full.page_table, wanted), most)

    def store(self, features: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Writes the context's keys and values of all layers from features [T, F]."""
        if not features.shape[0]:
            return
        spec, weights = self.spec, self.weights
        x, _ = self.norm(self.project(features, weights.fc), None, weights.feature_norm)
        bias = None if weights.kv_bias is None else weights.kv_bias.flatten()
        kv = self.project(x, weights.kv.flatten(0, 2), bias)
        heads = kv.unflatten(-1, (spec.num_layers, 2, spec.num_kv_heads, spec.head_dim))
        no_queries = kv.new_empty(kv.shape[0], 0, spec.head_dim)
        for number, layer in enumerate(weights.layers):
            keys, values = heads[:, number].unbind(1)
            self.write_kv(number, layer, no_queries, keys, values, positions, slots)

    def lay_out(self, lens: Tensor, page_table: Tensor, wanted: Tensor) -> DraftRows:
        """Returns the places of spans that begin after texts of `lens` [R] tokens.

        A request that wants no tokens stores nothing and reads one key: its page table may be too short.
        """
        span, page_size = self.spec.span, self.keys[0].shape[2]
        drafts = (wanted > 0)[:, None]
        positions = torch.where(drafts, lens[:, None] + torch.arange(span, device=lens.device), 0)
        pages = page_table.gather(1, positions // page_size)
        slots = torch.where(drafts, torch.add(positions % page_size, pages, alpha=page_size), NOT_STORED)
        num_queries = span // self.num_folded
        # a copy, not a view of stride 0: kernels read one length per query
        ends = torch.where(drafts, lens[:, None] + span, 1).repeat(1, num_queries).flatten()
        tables = page_table[:, None].expand(-1, num_queries, -1).flatten(0, 1)
        starts = torch.arange(len(ends) + 1, device=lens.device)
        return DraftRows(
            positions=positions.flatten(),
            slots=slots.flatten(),
            page_table=tables,
            query_starts=starts,
            kv_lens=ends,
        )

    def predict(self, anchors: Tensor, rows: DraftRows, num_wanted: int) -> Tensor:
        """Returns the first `num_wanted` tokens after each of the anchors [R]."""
        spec, model = self.spec, self.model
        token_ids = anchors.new_full((len(anchors), spec.span), spec.mask_token_id)
        token_ids[:, 0] = anchors
        residual = model.weights.embedding[token_ids.flatten()].to(model.dtype)
        update: Tensor | None = None
        for number, layer in enumerate(self.weights.layers):
            x, residual = self.norm(residual, update, layer.input_norm)
            x, residual = self.norm(residual, self.attend(x, number, layer, rows), layer.post_norm)
            gate, up = self.project(x, layer.gate_up).chunk(2, dim=-1)
            update = self.project(functional.silu(gate) * up, layer.down)
        assert update is not None, "fields.integer allows no drafter without layers"
        residual, update = (self.take_drafted(part, num_wanted) for part in (residual, update))
        x, _ = self.norm(residual, update, self.weights.norm)
        return model.project(x, model.weights.lm_head, None).argmax(-1).view(-1, num_wanted)

    def take_drafted(self, rows: Tensor, num_wanted: int) -> Tensor:
        """Returns the rows of the first tokens after each anchor, of rows [R N, H]."""
        return rows.view(-1, self.spec.span, rows.shape[-1])[:, 1 : num_wanted + 1].flatten(0, 1)

    def attend(self, x: Tensor, number: int, layer: DFlashLayer, rows: DraftRows) -> Tensor:
        """Writes keys and values of the spans, and returns what attention adds to the residual [R N, H]."""
        spec, weights = self.spec, self.weights
        q = self.project(x, layer.q, layer.q_bias).unflatten(-1, (-1, spec.head_dim))
        bias = None if weights.kv_bias is None else weights.kv_bias[number].flatten()
        kv = self.project(x, weights.kv[number].flatten(0, 1), bias)
        keys, values = kv.unflatten(-1, (2, spec.num_kv_heads, spec.head_dim)).unbind(1)
        q = self.norm_heads(q, layer.q_norm)
        q = self.write_kv(number, layer, q, keys, values, rows.positions, rows.slots)
        operands = AttentionOperands(
            q=self.fold(q),
            k_pages=self.keys[number],
            v_pages=self.values[number],
            page_table=rows.page_table,
            query_starts=rows.query_starts,
            kv_lens=rows.kv_lens,
            sinks=None,
            window=None,
            scale=spec.head_dim**-0.5,
        )
        mixed = self.unfold(self.kernels.attention(operands))
        return self.project(mixed.flatten(1), layer.o, layer.o_bias)

    def write_kv(
        self,
        number: int,
        layer: DFlashLayer,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        positions: Tensor,
        slots: Tensor,
    ) -> Tensor:
        """Norms and rotates keys [T, K, D], writes them and the values, and returns the rotated queries."""
        operands = RopeKvWriteOperands(
            q=q,
            k=self.norm_heads(keys, layer.k_norm),
            v=values,
            positions=positions,
            table=self.table,
            k_pages=self.keys[number],
            v_pages=self.values[number],
            slots=slots,
        )
        rotated, *_ = self.kernels.rope_kv_write(operands)
        return rotated

    @property
    def num_folded(self) -> int:
        """The number of a span's rows that one query of the attention op stands for.

        The op is causal and all rows of a span see the same keys, so each row would be a request of its own that
        reads them again. Rows that are folded into heads of one query share the reads.
        """
        heads = self.spec.num_heads // self.spec.num_kv_heads
        return max((rows for rows in range(1, MOST_SHARING // heads + 1) if self.spec.span % rows == 0), default=1)

    def fold(self, q: Tensor) -> Tensor:
        """Turns rows [R N, Q, D] into queries, with the rows of each among its heads [.., folded Q, D]."""
        rows: Tensor = q.unflatten(1, (self.spec.num_kv_heads, -1)).unflatten(0, (-1, self.num_folded))
        return rows.transpose(1, 2).flatten(1, 3)

    def unfold(self, mixed: Tensor) -> Tensor:
        """Turns queries with folded rows back into rows [R N, Q, D]."""
        heads: Tensor = mixed.unflatten(1, (self.spec.num_kv_heads, self.num_folded, -1))
        return heads.transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def norm(self, residual: Tensor, update: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the normed sum and the sum."""
        operands = RmsNormOperands(residual=residual, update=update, weight=weight, eps=self.spec.rms_eps)
        return self.kernels.rms_norm(operands)

    def norm_heads(self, heads: Tensor, weight: Tensor) -> Tensor:
        """Norms each head of [T, heads, D] by itself."""
        x, _ = self.norm(heads.flatten(0, 1), None, weight)
        return x.view(heads.shape)

    def project(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.kernels.linear(LinearOperands(x=x, weight=weight, bias=bias))
