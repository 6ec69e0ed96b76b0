"""The gpt-oss network, computed by ops over paged keys and values.

Shape letters: T tokens, L tokens whose logits are wanted, H hidden, Q query heads, K kv heads, D head dim, E
experts, A active, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from firesteel.device import DeviceSpec
from firesteel.kernels import Kernels
from firesteel.kernels.operands.activation import FP8
from firesteel.kernels.operands.fed import Fed
from firesteel.kernels.operands.weights import Experts, Mxfp4Weight
from firesteel.kernels.ops.attention_operands import AttentionOperands
from firesteel.kernels.ops.linear_operands import LinearOperands
from firesteel.kernels.ops.moe_operands import MoeMatmulOperands
from firesteel.kernels.ops.rms_norm import RmsNormOperands
from firesteel.kernels.ops.rms_norm_fed import RmsNormFedOperands
from firesteel.kernels.ops.rope_kv_write import RopeKvWriteOperands
from firesteel.kernels.ops.route import RouteOperands
from firesteel.kernels.rope import rope_table
from firesteel.kernels.tiles.tile_pin import AUTO
from firesteel.kernels.tiles.tuned import Tuned
from firesteel.kernels.wgmma.e4m3 import SPLIT
from firesteel.model.spec import ModelSpec
from firesteel.model.weights import LayerWeights, Weights
from firesteel.types import Batch, KvCache, KvScales, KvView, Taps


class Activations(NamedTuple):
    """Activations of some rows, and the same values in the stored form that the next matmul reads, if it does."""

    plain: Tensor
    fed: Fed | None = None


class Ranks(NamedTuple):
    """The addition of partial sums by the ranks of a tensor-parallel network.

    `add` takes the partial sums [T, H] of this rank and returns their sum over all ranks, equal bit for bit on
    each, in the same tensor or in another.
    """

    is_first: bool  # true of one rank: in decoding steps it adds the residual to its partial sums
    add: Callable[[Tensor], Tensor]


class GptOss:
    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        kernels: Kernels,
        device: DeviceSpec,
        *,
        max_context: int,
        sinks: bool = True,
        activation: str = "bf16",
        tile: str = AUTO,
        tuned: Tuned | None = None,
        kv_scales: KvScales | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Pins `tile` for any number of tokens; "auto" uses the tiles of `tuned`.

        Without `kv_scales`, keys and values are stored unscaled. With `ranks`, `spec` and `weights` are the part of
        one rank.
        """
        self.spec = spec
        self.weights = weights
        self.kernels = kernels
        self.dtype = device.dtype
        self.sinks = sinks
        self.activation = activation
        self.dense_activation = activation  # before dense weights in MXFP4
        self.tile = tile
        self.tuned = tuned or Tuned()
        ones = (1.0,) * spec.num_layers
        self.kv_scales = kv_scales or KvScales(keys=ones, values=ones)
        self.ranks = ranks
        self.table = rope_table(spec.rope, spec.head_dim, max_context, device.torch_device)

    def with_activation(self, activation: str) -> GptOss:
        """Returns the same network, with the same weights, that rounds activations to `activation`.

        FP8 is for the experts: dense weights in MXFP4 keep what they had.
        """
        if activation in (AUTO, self.activation):
            return self
        other = copy.copy(self)
        other.activation = activation
        other.dense_activation = self.dense_activation if activation == FP8 else activation
        return other

    def forward(
        self, batch: Batch, cache: KvCache, num_layers: int | None = None, taps: Taps | None = None
    ) -> Tensor:
        """Returns [L, H] after the final norm, for the rows whose logits are wanted; writes keys and values of all.

        With `num_layers`, only the first `num_layers` layers are computed. `taps` are written for all rows; one
        after the last layer has that layer computed for all rows, and is then written after the last one computed.
        """
        residual, update = self._compute_layers(batch, cache, num_layers, taps)
        if not residual.shape[0]:
            return residual
        x, _ = self.norm(residual, update, self.weights.norm)
        return x.plain

    def forward_residual(self, batch: Batch, cache: KvCache, num_layers: int | None = None) -> Tensor:
        """Does the work of `forward`, but returns the residual [L, H] before the final norm."""
        residual, update = self._compute_layers(batch, cache, num_layers)
        if not residual.shape[0]:
            return residual
        return self._add_update(residual, update)

    def forward_with_logits(
        self, batch: Batch, cache: KvCache, num_layers: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the residual [T, H] of all rows before the final norm, and the fp32 logits [L, V] of some.

        The last layer is computed twice, for all rows and for those with logits, so that the logits have the bits
        that `logits(forward(...))` gives, which does not compute the last layer of the other rows.
        """
        last = len(self.weights.layers[:num_layers]) - 1
        residual, mixed = self._begin_last_layer(batch, cache, last)
        whole = self._add_update(*self._end_layer(residual, mixed, last, batch.num_tokens))
        rows = batch.logit_rows
        x, _ = self.norm(*self._end_layer(residual[rows], mixed[rows], last, None), self.weights.norm)
        return whole, self.logits(x.plain)

    def _add_update(self, residual: Tensor, update: Tensor | None) -> Tensor:
        """Adds what the last layer computed as the final norm does."""
        _, residual = self.norm(residual, update, self.weights.norm)
        return residual

    def _compute_layers(
        self, batch: Batch, cache: KvCache, num_layers: int | None, taps: Taps | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the residual [L, H] and what the last layer adds to it; without rows that is nothing."""
        last = len(self.weights.layers[:num_layers]) - 1
        rows = self.find_rows(batch)
        if taps is not None and (end := len(self.weights.layers)) in taps.boundaries:
            residual, mixed = self._begin_last_layer(batch, cache, last, taps)
            residual = self._add_update(*self._end_layer(residual, mixed, last, batch.num_tokens))
            taps.keep(end, residual)
            return residual if rows is None else residual[rows], None
        if rows is not None and not len(rows):
            x, residual = self._begin_layers(batch, cache, last, taps)
            self.write_kv(x, last, batch, cache)
            return residual[rows], None
        residual, mixed = self._begin_last_layer(batch, cache, last, taps)
        if rows is None:
            return self._end_layer(residual, mixed, last, batch.num_tokens)
        return self._end_layer(residual[rows], mixed[rows], last, None)

    def _begin_layers(
        self, batch: Batch, cache: KvCache, last: int, taps: Taps | None = None
    ) -> tuple[Activations, Tensor]:
        """Computes the layers before `last` and its input norm; returns the activations and the residual [T, H]."""
        residual = self.weights.embedding[batch.token_ids].to(self.dtype)
        update: Tensor | None = None
        for number, layer in enumerate(self.weights.layers[: last + 1]):
            x, residual = self.norm(residual, update, layer.input_norm, self.reads_fed(layer.qkv))
            if taps is not None:
                taps.keep(number, residual)
            if number < last:
                mixed = self.attend(self.write_kv(x, number, batch, cache), number, batch, cache)
                residual, update = self._end_layer(residual, mixed, number, batch.num_tokens)
        return x, residual

    def _begin_last_layer(
        self, batch: Batch, cache: KvCache, last: int, taps: Taps | None = None
    ) -> tuple[Tensor, Tensor]:
        """Computes up to the attention of layer `last`; returns the residual [T, H] and the mixed values [T, QD].

        Attention runs for all rows: lengths for fewer rows would need more kernels to be compiled.
        """
        x, residual = self._begin_layers(batch, cache, last, taps)
        return residual, self.attend(self.write_kv(x, last, batch, cache), last, batch, cache)

    def _end_layer(
        self, residual: Tensor, mixed: Tensor, number: int, num_tokens: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Computes a layer from attention's output on; returns the residual and what the experts add to it."""
        layer = self.weights.layers[number]
        update = self.add_ranks(self.project(mixed, layer.o, layer.o_bias))
        reads_fed = self.kernels.moe_matmul.reads_fed and self.activation == self.dense_activation
        x, residual = self.norm(residual, update, layer.post_norm, reads_fed)
        return residual, self.add_ranks(self.mix(x, layer, num_tokens))

    def add_ranks(self, update: Tensor) -> Tensor:
        """Returns the sum over all ranks of what each adds to the residual; the next norm adds it."""
        return update if self.ranks is None else self.ranks.add(update)

    @property
    def num_layers_of_each_kind(self) -> int:
        """The number of first layers that together launch every kernel of a step.

        It is at least two, because the first layer's input norm has no update to add. Experts with scales of their
        own kind may have kernels of their own.
        """
        windows = self.spec.windows
        kinds = [self._find_kind(layer) for layer in self.weights.layers]
        firsts = [windows.index(window) for window in set(windows)] + [kinds.index(kind) for kind in set(kinds)]
        return max(2, 1 + max(firsts))

    def _find_kind(self, layer: LayerWeights) -> tuple[bool, bool]:
        """Returns what the kernels of a layer's experts depend on beside their shapes."""
        experts = layer.experts
        if not isinstance(experts, Experts):
            return True, True
        return experts.fits_bf16, not self.widens_to_e4m3 or experts.e4m3_rows.num_unfit == 0

    @property
    def widens_to_e4m3(self) -> bool:
        """True if experts may be multiplied in FP8, except those that do not fit."""
        return self.activation == FP8 or any(way.name == SPLIT for way in self.kernels.moe_matmul.candidates)

    def find_rows(self, batch: Batch) -> Tensor | None:
        """Returns the rows that the last layer continues with after keys and values are written; None means all."""
        return batch.logit_rows if len(batch.logit_rows) < len(batch.token_ids) else None

    def norm(
        self, residual: Tensor, update: Tensor | None, weight: Tensor, fed: bool = False
    ) -> tuple[Activations, Tensor]:
        """Returns activations [T, H] and the new residual; `fed` also stores them as MXFP4 matmuls read them."""
        eps = self.spec.rms_eps
        if not fed:
            operands = RmsNormOperands(residual=residual, update=update, weight=weight, eps=eps)
            x, residual = self.kernels.rms_norm(operands)
            return Activations(x), residual
        storing = RmsNormFedOperands(
            residual=residual, update=update, weight=weight, eps=eps, activation=self.dense_activation
        )
        x, residual, stored = self.kernels.rms_norm_fed(storing)
        return Activations(x, stored), residual

    def reads_fed(self, weight: Tensor | Mxfp4Weight) -> bool:
        return isinstance(weight, Mxfp4Weight) and self.kernels.linear.reads_fed

    def write_kv(self, x: Activations, number: int, batch: Batch, cache: KvCache) -> Tensor:
        """Writes keys and values, and returns queries [T, Q, D], rotated to their positions."""
        spec, layer = self.spec, self.weights.layers[number]
        qkv = self.project(x, layer.qkv, layer.qkv_bias).unflatten(-1, (-1, spec.head_dim))  # [T, Q+2K, D]
        q, k, v = qkv.split([spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        key_scale, value_scale = self.find_scales(number)
        operands = RopeKvWriteOperands(
            q=q,
            k=k,
            v=v,
            positions=batch.positions,
            table=self.table,
            k_pages=cache.keys[number],
            v_pages=cache.values[number],
            slots=self.find_view(number, batch).slots,
            key_scale=key_scale,
            value_scale=value_scale,
            clipped=cache.saturated,
        )
        rotated, *_ = self.kernels.rope_kv_write(operands)
        return rotated

    def attend(self, q: Tensor, number: int, batch: Batch, cache: KvCache) -> Tensor:
        """Returns the mixed values [T, Q D] of all heads."""
        spec, layer = self.spec, self.weights.layers[number]
        key_scale, value_scale = self.find_scales(number)
        operands = AttentionOperands(
            q=q,
            k_pages=cache.keys[number],
            v_pages=cache.values[number],
            page_table=self.find_view(number, batch).page_table,
            query_starts=batch.query_starts,
            kv_lens=batch.kv_lens,
            sinks=layer.sinks if self.sinks else None,
            window=spec.windows[number],
            scale=spec.head_dim**-0.5,
            key_scale=key_scale,
            value_scale=value_scale,
        )
        return self.kernels.attention(operands).flatten(1)

    def find_view(self, number: int, batch: Batch) -> KvView:
        return batch.full if self.spec.windows[number] is None else batch.window

    def find_scales(self, number: int) -> tuple[float, float]:
        return self.kv_scales.keys[number], self.kv_scales.values[number]

    def mix(self, x: Activations, layer: LayerWeights, num_tokens: Tensor | None = None) -> Tensor:
        """Returns the output of the experts; rows from `num_tokens` on are padding and get none."""
        spec, run = self.spec, self.kernels
        routing = RouteOperands(
            x=x.plain, weight=layer.router, bias=layer.router_bias, active=spec.num_active, num_tokens=num_tokens
        )
        ids, weights = run.route(routing)
        shape = (spec.num_experts, spec.hidden_size, spec.intermediate_size)
        tile = self.find_tile("moe_matmul", shape, x.plain.shape[0])
        operands = MoeMatmulOperands(
            x=x.plain,
            ids=ids,
            weights=weights,
            experts=layer.experts,
            limit=spec.swiglu_limit,
            activation=self.activation,
            tile=tile,
            fed=x.fed,
        )
        return run.moe_matmul(operands)

    def find_tile(self, op: str, shape: Sequence[int], tokens: int) -> str:
        """Returns the tile of a matmul on MXFP4 weights of this shape."""
        if self.tile != AUTO:
            return self.tile
        activation = self.activation if op == "moe_matmul" else self.dense_activation
        return self.tuned.find_tile(op, activation, shape, tokens)

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Returns fp32 logits [.., V] of rows that `forward` returned, written to `out` if given.

        A rank that holds some rows of lm_head returns the logits of these.
        """
        logits = self.project(hidden, self.weights.lm_head, None)
        return logits.float() if out is None else out.copy_(logits)

    def project(self, x: Tensor | Activations, weight: Tensor | Mxfp4Weight, bias: Tensor | None) -> Tensor:
        """Multiplies by a dense weight; rounding, tiles and stored activations apply to MXFP4 weights only."""
        rows = x if isinstance(x, Activations) else Activations(x)
        if isinstance(weight, Mxfp4Weight):
            tile = self.find_tile("linear", weight.shape, rows.plain.shape[0])
            operands = LinearOperands(
                x=rows.plain, weight=weight, bias=bias, activation=self.dense_activation, tile=tile, fed=rows.fed
            )
            return self.kernels.linear(operands)
        return self.kernels.linear(LinearOperands(x=rows.plain, weight=weight, bias=bias))
