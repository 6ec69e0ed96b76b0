"""States of the shipped Kindling on training text: what drafters learn from.

Written for one CPU thread: products in bf16, documents end to end in pieces whose activations stay in the cache.
Shape letters: T tokens, B boundaries (layers and one), H hidden, Q query heads, K kv heads, D head dim, E experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from firesteel.device import find_device
from firesteel.formats import mxfp4
from firesteel.hub import BUILT_IN
from firesteel.kernels.rope import rope_table
from firesteel.model.spec import ModelSpec, read_spec
from firesteel.model.weights import LayerWeights, load_weights
from kindling.corpus import training_documents
from kindling.feed import Encoded, Encoder

PIECE = 512  # tokens computed together
LONGEST = 320  # tokens; longer documents have few answers for their size


@dataclass(frozen=True, slots=True)
class States:
    """Documents end to end with the target's residuals."""

    token_ids: Tensor  # [T] int64
    starts: Tensor  # [documents + 1] int64
    roles: Tensor  # [T] int64, of the tokens, see feed.py
    residuals: Tensor  # [T, B, H] bf16

    @property
    def num_documents(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True, slots=True)
class TargetLayer:
    """Weights of a layer of Kindling in the types and orders that products on a CPU like."""

    stored: LayerWeights
    gate_up: Tensor  # [2 E I, H] bf16: all gates, then all ups
    gate_up_bias: Tensor
    down: Tensor  # [H, E I] bf16
    down_bias: Tensor  # [E, H]


class Target:
    """The shipped Kindling over whole documents, for its states alone."""

    def __init__(self) -> None:
        self.spec = read_spec(BUILT_IN)
        self.weights, _ = load_weights(BUILT_IN, self.spec, find_device("cpu"), workers=1, reserve_gib=0.0)
        self.layers = [_unpack(layer) for layer in self.weights.layers]
        self.table = rope_table(self.spec.rope, self.spec.head_dim, LONGEST, torch.device("cpu"))

    @torch.inference_mode()
    def residuals(self, token_ids: Tensor, lens: list[int]) -> Tensor:
        """Returns the residuals [T, B, H] before each layer and after the last, of documents end to end."""
        positions = torch.cat([torch.arange(length) for length in lens])
        cos, sin = self.table[positions].bfloat16()[:, None].chunk(2, dim=-1)
        x = self.weights.embedding[token_ids].float()
        kept = [x]
        for layer, window in zip(self.layers, self.spec.windows, strict=True):
            x = x + self._attend(layer.stored, _norm(x, layer.stored.input_norm), cos, sin, lens, window)
            x = x + _mix(layer, _norm(x, layer.stored.post_norm), self.spec)
            kept.append(x)
        return torch.stack(kept, dim=1).bfloat16()

    def _attend(
        self, layer: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor, lens: list[int], window: int | None
    ) -> Tensor:
        spec = self.spec
        assert isinstance(layer.qkv, Tensor) and isinstance(layer.o, Tensor)
        qkv = functional.linear(x, layer.qkv, layer.qkv_bias).unflatten(-1, (-1, spec.head_dim))
        q, k, v = qkv.split([spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        mixed = [
            attend(*(part.transpose(0, 1) for part in parts), layer.sinks, window)
            for parts in zip(q.split(lens), k.split(lens), v.split(lens), strict=True)
        ]
        return functional.linear(torch.cat(mixed, dim=1).transpose(0, 1).flatten(1), layer.o, layer.o_bias)


def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, window: int | None) -> Tensor:
    """Attends within one document: q [Q, T, D], k and v [K, T, D]. A sink is a key of zeros with its own score."""
    length, shared = q.shape[1], q.shape[0] // k.shape[0]
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    bias = torch.zeros(length, length, dtype=q.dtype).masked_fill_(~seen, float("-inf"))
    columns = sinks.to(q.dtype)[:, None, None].expand(-1, length, 1)
    bias = torch.cat((bias.expand(len(q), -1, -1), columns), dim=-1)
    k, v = (functional.pad(x, (0, 0, 0, 1)).repeat_interleave(shared, 0) for x in (k, v))
    return functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=bias[None])[0]


def _mix(layer: TargetLayer, x: Tensor, spec: ModelSpec) -> Tensor:
    """Computes all experts as one wide product; those not chosen count zero."""
    stored = layer.stored
    logits = functional.linear(x.float(), stored.router.float(), stored.router_bias.float())
    top, ids = logits.topk(spec.num_active, dim=-1)
    weights = torch.zeros_like(logits).scatter(-1, ids, top.softmax(-1)).bfloat16()  # [T, E]
    gate, up = functional.linear(x, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
    gate, up = gate.clamp(max=spec.swiglu_limit), up.clamp(-spec.swiglu_limit, spec.swiglu_limit)
    mixed = (gate * torch.sigmoid(1.702 * gate) * (up + 1)).unflatten(-1, (spec.num_experts, -1))
    mixed *= weights[..., None]
    return functional.linear(mixed.flatten(1), layer.down) + weights @ layer.down_bias


def _unpack(layer: LayerWeights) -> TargetLayer:
    experts = layer.plain_experts
    gate_up = mxfp4.dequantize(experts.gate_up_codes, experts.gate_up_scales).bfloat16()
    down = mxfp4.dequantize(experts.down_codes, experts.down_scales).bfloat16()
    parts = (gate_up[:, ::2], gate_up[:, 1::2])
    biases = (experts.gate_up_bias[:, ::2], experts.gate_up_bias[:, 1::2])
    return TargetLayer(
        stored=layer,
        gate_up=torch.cat([part.flatten(0, 1) for part in parts]),
        gate_up_bias=torch.cat([bias.flatten() for bias in biases]),
        down=down.transpose(0, 1).flatten(1).contiguous(),
        down_bias=experts.down_bias,
    )


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight.float(), 1e-5).bfloat16()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def collect_states(path: Path, *, num_tokens: int, seed: int) -> States:
    """Computes states of documents of `num_tokens` tokens together, and keeps them in `path` for later calls."""
    if path.exists():
        return States(**torch.load(path, weights_only=True))
    target = Target()
    token_ids, roles, residuals, lens = [], [], [], []
    for piece in _pieces(num_tokens, seed):
        tokens = torch.from_numpy(np.concatenate([document.token_ids for document in piece])).long()
        piece_lens = [len(document.token_ids) for document in piece]
        token_ids.append(tokens)
        roles.append(torch.from_numpy(np.concatenate([document.roles for document in piece])).long())
        residuals.append(target.residuals(tokens, piece_lens))
        lens += piece_lens
    parts = {
        "token_ids": torch.cat(token_ids),
        "starts": torch.tensor([0, *lens]).cumsum(0),
        "roles": torch.cat(roles),
        "residuals": torch.cat(residuals),
    }
    torch.save(parts, path)
    return States(**parts)


def _pieces(num_tokens: int, seed: int) -> Iterator[list[Encoded]]:
    """Yields documents in pieces of about `PIECE` tokens."""
    encoder = Encoder(BUILT_IN)
    piece: list[Encoded] = []
    for document in training_documents(seed, long_share=0.0):
        if num_tokens <= 0:
            break
        encoded = encoder.encode(document)
        if len(encoded.token_ids) <= LONGEST:
            piece.append(encoded)
            num_tokens -= len(encoded.token_ids)
        if sum(len(part.token_ids) for part in piece) >= PIECE:
            yield piece
            piece = []
    if piece:
        yield piece
