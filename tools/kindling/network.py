"""A trainable gpt-oss network, equal in its results to firesteel's model.

All experts are computed as one wide matrix product, and those not chosen are multiplied by zero: faster than
gathering at this size. Experts can be fake-quantised to MXFP4 with a straight-through gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from firesteel.formats import mxfp4
from firesteel.kernels.rope import RopeSpec, rope_table
from firesteel.model.spec import ModelSpec

SPEC = ModelSpec(
    num_layers=8,
    hidden_size=256,
    intermediate_size=192,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    num_experts=8,
    num_active=4,
    vocab_size=4096,
    windows=(128, None) * 4,
    rope=RopeSpec(theta=150000.0, factor=4.0),
    max_context=16384,
)
SINK_RANGE = (-2.0, 5.75)  # range in the public checkpoints
QUANTIZE_RULE = "mse"


@dataclass(frozen=True, slots=True)
class Masks:
    """Attention masks of a batch of packed documents, for full layers and for window layers."""

    full: BlockMask | Tensor
    window: BlockMask | Tensor


class Attention(nn.Module):
    def __init__(self, spec: ModelSpec, window: int | None) -> None:
        super().__init__()
        self.spec, self.window = spec, window
        std = 0.02
        self.qkv = nn.Parameter(torch.randn(spec.q_size + 2 * spec.kv_size, spec.hidden_size) * std)
        self.qkv_bias = nn.Parameter(torch.zeros(spec.q_size + 2 * spec.kv_size))
        self.o = nn.Parameter(torch.randn(spec.hidden_size, spec.q_size) * std * (2 * spec.num_layers) ** -0.5)
        self.o_bias = nn.Parameter(torch.zeros(spec.hidden_size))
        self.sinks = nn.Parameter(torch.empty(spec.num_heads).uniform_(*SINK_RANGE))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: BlockMask | Tensor) -> Tensor:
        """Attends within documents: x [B, L, H]; cos and sin [B, 1, L, D/2]."""
        spec = self.spec
        qkv = functional.linear(x, self.qkv, self.qkv_bias).unflatten(-1, (-1, spec.head_dim)).transpose(1, 2)
        q, k, v = qkv.split([spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        q, k, v = rotate(q, cos, sin), rotate(k, cos, sin), v.contiguous()
        mixed = attend_packed if isinstance(mask, BlockMask) else attend_dense
        y = mixed(q, k, v, self.sinks, mask, spec.head_dim**-0.5)
        return functional.linear(y.transpose(1, 2).flatten(2), self.o, self.o_bias)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def attend_packed(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, mask: BlockMask, scale: float) -> Tensor:
    """Applies sinks: a sink only enlarges the denominator, so the result shrinks by sigmoid(logsumexp - sink)."""
    wanted = AuxRequest(lse=True)
    y, more = flex_attention(q, k, v, block_mask=mask, scale=scale, enable_gqa=True, return_aux=wanted)
    return y * torch.sigmoid(more.lse - sinks[:, None])[..., None].to(y.dtype)


def attend_dense(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, mask: Tensor, scale: float) -> Tensor:
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    scores = scores.masked_fill(~mask[:, None], float("-inf"))
    column = sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)
    return (torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1] @ v.float()).to(q.dtype)


class Experts(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        experts, hidden, inter, std = spec.num_experts, spec.hidden_size, spec.intermediate_size, 0.02
        self.router = nn.Parameter(torch.randn(experts, hidden) * std)
        self.router_bias = nn.Parameter(torch.zeros(experts))
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * inter, hidden) * std)
        self.gate_up_bias = nn.Parameter(torch.zeros(experts, 2 * inter))
        self.down = nn.Parameter(torch.randn(experts, hidden, inter) * std * (2 * spec.num_layers) ** -0.5)
        self.down_bias = nn.Parameter(torch.zeros(experts, hidden))
        # The rounding error of MXFP4 for each weight; zero while quantisation is off.
        self.register_buffer("gate_up_error", torch.zeros_like(self.gate_up), persistent=False)
        self.register_buffer("down_error", torch.zeros_like(self.down), persistent=False)

    @torch.no_grad()
    def quantize(self, is_on: bool) -> None:
        for weight, error in ((self.gate_up, self.gate_up_error), (self.down, self.down_error)):
            if is_on:
                error.copy_(mxfp4.dequantize(*mxfp4.quantize(weight, QUANTIZE_RULE)) - weight)
            else:
                error.zero_()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns y [B, L, H], and the mean share of each expert [E] followed by the balance loss."""
        spec = self.spec
        with torch.autocast(x.device.type, enabled=False):
            logits = functional.linear(x.float(), self.router, self.router_bias)
        top, ids = logits.topk(spec.num_active, dim=-1)
        weights = torch.zeros_like(logits).scatter(-1, ids, top.softmax(-1))  # [B, L, E]
        gate_up = (self.gate_up + self.gate_up_error).flatten(0, 1)
        inner = functional.linear(x, gate_up, self.gate_up_bias.flatten()).unflatten(-1, (spec.num_experts, -1))
        gate, up = inner[..., ::2].clamp(max=spec.swiglu_limit), inner[..., 1::2]
        up = up.clamp(-spec.swiglu_limit, spec.swiglu_limit)
        mixed = gate * torch.sigmoid(1.702 * gate) * (up + 1) * weights[..., None].to(x.dtype)
        down = (self.down + self.down_error).transpose(0, 1).flatten(1)  # [H, E I]
        y = functional.linear(mixed.flatten(-2), down) + (weights @ self.down_bias.float()).to(x.dtype)
        used = (weights > 0).float().mean((0, 1)) / spec.num_active  # [E], sums to one
        balance = spec.num_experts * (used.detach() * logits.softmax(-1).mean((0, 1))).sum()
        return y, torch.cat((used.detach(), balance[None]))


class Layer(nn.Module):
    def __init__(self, spec: ModelSpec, window: int | None) -> None:
        super().__init__()
        self.input_norm = nn.Parameter(torch.ones(spec.hidden_size))
        self.attention = Attention(spec, window)
        self.post_norm = nn.Parameter(torch.ones(spec.hidden_size))
        self.experts = Experts(spec)
        self.eps = spec.rms_eps

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: BlockMask | Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.attention(norm(x, self.input_norm, self.eps), cos, sin, mask)
        y, usage = self.experts(norm(x, self.post_norm, self.eps))
        return x + y, usage


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalises in fp32; the product that follows rounds its input."""
    return functional.rms_norm(x.float(), (x.shape[-1],), weight, eps)


class Network(nn.Module):
    def __init__(self, spec: ModelSpec = SPEC) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Parameter(torch.randn(spec.vocab_size, spec.hidden_size) * 0.5)
        self.layers = nn.ModuleList(Layer(spec, window) for window in spec.windows)
        self.norm = nn.Parameter(torch.ones(spec.hidden_size))
        self.lm_head = nn.Parameter(torch.randn(spec.vocab_size, spec.hidden_size) * 0.02)
        table = rope_table(spec.rope, spec.head_dim, spec.max_context, torch.device("cpu"))
        self.register_buffer("table", table, persistent=False)

    def forward(self, token_ids: Tensor, positions: Tensor, masks: Masks) -> tuple[Tensor, Tensor]:
        """Returns hidden rows [B, L, H] after the last norm, expert use [layers, E + 1] (last: balance loss)."""
        cos, sin = self.table[positions].unsqueeze(1).chunk(2, dim=-1)
        x = self.embedding[token_ids]
        usage = []
        for layer, window in zip(self.layers, self.spec.windows, strict=True):
            x, used = layer(x, cos, sin, masks.full if window is None else masks.window)
            usage.append(used)
        return norm(x, self.norm, self.spec.rms_eps), torch.stack(usage)

    def quantize(self, is_on: bool = True) -> None:
        """Rounds the experts to MXFP4; call after every change of the weights. Off undoes it."""
        for layer in self.layers:
            layer.experts.quantize(is_on)


def make_masks(positions: Tensor, window: int) -> Masks:
    """Builds masks from positions [B, L] that restart at zero with every document."""
    documents = (positions == 0).cumsum(-1)
    length = positions.shape[-1]
    if positions.is_cuda:
        return Masks(_block_mask(documents, None), _block_mask(documents, window))
    order = torch.arange(length)
    full = (documents[:, :, None] == documents[:, None, :]) & (order[:, None] >= order)
    return Masks(full, full & (order[:, None] - order < window))


def _block_mask(documents: Tensor, window: int | None) -> BlockMask:
    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (query >= key) & (documents[batch, query] == documents[batch, key])
        return seen if window is None else seen & (query - key < window)

    batch, length = documents.shape
    return _mask_maker()(sees, batch, None, length, length, device=documents.device)


@functools.cache
def _mask_maker() -> Callable[..., BlockMask]:
    return torch.compile(create_block_mask, dynamic=False)
