"""A trainable DFlash drafter, equal in its results to firesteel's, for many spans of several texts at once.

Shape letters: B texts, n tokens of a text, A spans per text, N rows of a span, F features, H hidden, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from firesteel.kernels.rope import rope_table
from firesteel.model.drafters.dflash_spec import DFlashSpec
from firesteel.model.drafters.dflash_weights import DFlashLayer, DFlashWeights
from kindling.network import Network, norm, rotate

POSITIONS = 2048  # more than the longest training text and a span


class Layer(nn.Module):
    def __init__(self, spec: DFlashSpec) -> None:
        super().__init__()
        self.spec = spec
        hidden, inter = spec.hidden_size, spec.intermediate_size
        added = (2 * spec.num_layers) ** -0.5
        self.input_norm = nn.Parameter(torch.ones(hidden))
        self.q = draw(spec.q_size, hidden)
        self.kv = draw(2 * spec.kv_size, hidden)
        self.q_norm = nn.Parameter(torch.ones(spec.head_dim))
        self.k_norm = nn.Parameter(torch.ones(spec.head_dim))
        self.o = draw(hidden, spec.q_size, added)
        self.post_norm = nn.Parameter(torch.ones(hidden))
        self.gate_up = draw(2 * inter, hidden)
        self.down = draw(hidden, inter, added)

    def forward(self, x: Tensor, context: Tensor, anchors: Tensor, table: Tensor) -> Tensor:
        """Returns rows [B, A, N, H] of spans at `anchors` [B, A], over the context [B, n, H] before each."""
        eps = self.spec.rms_eps
        x = x + self.attend(norm(x, self.input_norm, eps), context, anchors, table)
        gate, up = functional.linear(norm(x, self.post_norm, eps), self.gate_up).chunk(2, dim=-1)
        return x + functional.linear(functional.silu(gate) * up, self.down)

    def attend(self, x: Tensor, context: Tensor, anchors: Tensor, table: Tensor) -> Tensor:
        spec = self.spec
        length, span = context.shape[1], x.shape[2]
        order = torch.arange(length, device=x.device)
        positions = anchors[:, :, None] + torch.arange(span, device=x.device)
        q = functional.linear(x, self.q).unflatten(-1, (-1, spec.head_dim))
        q = turn(norm(q, self.q_norm, spec.rms_eps), positions, table)
        own_k, own_v = self.project(x, positions, table)  # [B, A, N, K, D]
        k, v = self.project(context, order, table)  # [B, n, K, D]
        q = q.unflatten(3, (spec.num_kv_heads, -1)).mul(spec.head_dim**-0.5)  # [B, A, N, K, Q/K, D]
        far = torch.einsum("bankgd,bmkd->bankgm", q, k)
        far = far.masked_fill((order >= anchors[:, :, None])[:, :, None, None, None], float("-inf"))
        near = torch.einsum("bankgd,bamkd->bankgm", q, own_k)
        far, near = torch.cat((far, near), dim=-1).softmax(-1).split([length, span], dim=-1)
        y = torch.einsum("bankgm,bmkd->bankgd", far, v) + torch.einsum("bankgm,bamkd->bankgd", near, own_v)
        return functional.linear(y.flatten(3), self.o)

    def project(self, x: Tensor, positions: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        """Returns rotated keys and values [.., K, D] of rows [.., H]."""
        heads = functional.linear(x, self.kv).unflatten(-1, (2, self.spec.num_kv_heads, -1))
        keys, values = heads.unbind(-3)
        return turn(norm(keys, self.k_norm, self.spec.rms_eps), positions, table), values


def draw(rows: int, columns: int, gain: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * gain * columns**-0.5)


def turn(heads: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    """Rotates heads [.., heads, D] to positions [..]."""
    cos, sin = table[positions].unsqueeze(-2).chunk(2, dim=-1)
    return rotate(heads, cos, sin)


class DFlashNetwork(nn.Module):
    """A drafter that borrows the embedding, and for its logits the lm_head, of `target`."""

    def __init__(self, spec: DFlashSpec, target: Network, feature_sizes: Tensor) -> None:
        """Begins with random weights; `feature_sizes` [F] are the RMS of the features."""
        super().__init__()
        self.spec = spec
        self.fc = nn.Parameter(draw(spec.hidden_size, spec.num_features).detach() / feature_sizes)
        self.feature_norm = nn.Parameter(torch.ones(spec.hidden_size))
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.num_layers))
        self.norm = nn.Parameter(target.norm.detach().clone())
        self.register_buffer("embedding", target.embedding.detach(), persistent=False)
        self.register_buffer("lm_head", target.lm_head.detach(), persistent=False)
        table = rope_table(spec.rope, spec.head_dim, POSITIONS, torch.device("cpu"))
        self.register_buffer("table", table, persistent=False)

    def forward(self, features: Tensor, anchors: Tensor, anchor_ids: Tensor) -> Tensor:
        """Returns normed rows [B, A, N - 1, H] of the tokens drafted after anchors at places [B, A]."""
        eps = self.spec.rms_eps
        context = norm(functional.linear(features, self.fc), self.feature_norm, eps)
        token_ids = anchors.new_full((*anchors.shape, self.spec.span), self.spec.mask_token_id)
        token_ids[:, :, 0] = anchor_ids
        x = self.embedding[token_ids]
        for layer in self.layers:
            x = layer(x, context, anchors, self.table)
        return norm(x[:, :, 1:], self.norm, eps)

    @torch.no_grad()
    def unpack(self, weights: DFlashWeights) -> None:
        """Takes over weights, so that training can continue from a drafter."""
        for name in ("fc", "feature_norm", "norm"):
            getattr(self, name).copy_(getattr(weights, name))
        for layer, stored, kv in zip(self.layers, weights.layers, weights.kv, strict=True):
            layer.kv.copy_(kv.flatten(0, 1))
            for name in ("input_norm", "q", "q_norm", "k_norm", "o", "post_norm", "gate_up", "down"):
                getattr(layer, name).copy_(getattr(stored, name))

    @torch.no_grad()
    def pack(self) -> DFlashWeights:
        """Returns the weights in bf16 as firesteel stores them."""

        def bf16(tensor: Tensor) -> Tensor:
            return tensor.detach().cpu().bfloat16()

        layers = [
            DFlashLayer(
                input_norm=bf16(layer.input_norm),
                q=bf16(layer.q),
                q_bias=None,
                q_norm=bf16(layer.q_norm),
                k_norm=bf16(layer.k_norm),
                o=bf16(layer.o),
                o_bias=None,
                post_norm=bf16(layer.post_norm),
                gate_up=bf16(layer.gate_up),
                down=bf16(layer.down),
            )
            for layer in self.layers
        ]
        kv = torch.stack([bf16(layer.kv).unflatten(0, (2, -1)) for layer in self.layers])
        return DFlashWeights(
            fc=bf16(self.fc),
            feature_norm=bf16(self.feature_norm),
            kv=kv,
            kv_bias=None,
            layers=layers,
            norm=bf16(self.norm),
        )
