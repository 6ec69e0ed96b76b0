"""A trainable Eagle3 head for Kindling, equal in its results to firesteel's drafter.

It is trained as it drafts: the first step reads the target's states, every further one the head's own state of the
step before, and attends to the target's states up to its anchor and to its own steps after it. Shape letters: T
tokens, A anchors (rows from which is drafted), H hidden, F features, Q query heads, K kv heads, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from firesteel.kernels.rope import RopeSpec, rope_table
from kindling.feed import ANSWER
from kindling.states import LONGEST, States

STD = 0.02
ROWS, ANCHORS = (
    128,
    32,
)  # tokens are padded and anchors dropped to multiples: products in bf16 are compiled by shape


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """Shape of the head, and the target's states that it reads."""

    boundaries: tuple[int, ...]
    hidden_size: int = 256
    intermediate_size: int = 512
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    rms_eps: float = 1e-5
    rope_theta: float = 10000.0

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Lesson:
    """Some documents end to end, and the rows from which is drafted."""

    followers: Tensor  # [T], the token after each row
    features: Tensor  # [T, F]
    final: Tensor  # [T, H], the target's last residual, from which its own choice is computed
    lens: list[int]  # tokens of each document
    anchor_lens: list[int]  # anchors of each document
    places: Tensor  # [T], position in the document
    left: Tensor  # [T], tokens of the document after the row
    anchors: Tensor  # [A], rows whose first draft is a token of an answer


def make_lesson(states: States, documents: list[int], boundaries: tuple[int, ...]) -> Lesson:
    """Builds a lesson of some documents of `states`; rows of padding are a document without anchors."""
    spans = [range(int(states.starts[number]), int(states.starts[number + 1])) for number in documents]
    lens = [len(span) for span in spans]
    rows = torch.cat([torch.arange(span.start, span.stop) for span in spans])
    left = torch.cat([torch.arange(length - 1, -1, -1) for length in lens])
    is_anchor = (states.roles[rows].roll(-2) == ANSWER) & (left >= 2)
    count = int(is_anchor.sum())
    is_anchor &= is_anchor.cumsum(0) <= max(count // ANCHORS * ANCHORS, min(count, ANCHORS))
    padding = -len(rows) % ROWS
    lens.append(padding)
    rows, left, is_anchor = (functional.pad(part, (0, padding)) for part in (rows, left, is_anchor))
    return Lesson(
        followers=states.token_ids[rows].roll(-1),
        features=states.residuals[rows][:, list(boundaries)].flatten(1),
        final=states.residuals[rows, -1],
        lens=lens,
        anchor_lens=[int(part.sum()) for part in is_anchor.split(lens)],
        places=torch.cat([torch.arange(length) for length in lens]),
        left=left,
        anchors=is_anchor.nonzero()[:, 0],
    )


class Head(nn.Module):
    """The trained part. Embedding and lm_head are the target's, and stay as they are."""

    def __init__(self, shape: HeadShape, embedding: Tensor, lm_head: Tensor, target_norm: Tensor) -> None:
        super().__init__()
        self.shape = shape
        hidden, inter, num_states = shape.hidden_size, shape.intermediate_size, len(shape.boundaries)
        self.fc_norm = nn.Parameter(torch.ones(num_states, hidden))
        self.fc = nn.Parameter(torch.randn(hidden, num_states * hidden) * STD)
        self.embed_norm = nn.Parameter(torch.ones(hidden))
        self.hidden_norm = nn.Parameter(torch.ones(hidden))
        self.q = nn.Parameter(torch.randn(shape.q_size, 2 * hidden) * STD)
        self.kv = nn.Parameter(torch.randn(2 * shape.kv_size, 2 * hidden) * STD)
        self.o = nn.Parameter(torch.randn(hidden, shape.q_size) * STD)
        self.post_norm = nn.Parameter(torch.ones(hidden))
        self.gate_up = nn.Parameter(torch.randn(2 * inter, hidden) * STD)
        self.down = nn.Parameter(torch.randn(hidden, inter) * STD)
        self.norm = nn.Parameter(target_norm.float() * 0.5)  # smaller: untrained drafts are not to be confident
        self.register_buffer("embedding", embedding.float(), persistent=False)
        self.register_buffer("lm_head", lm_head, persistent=False)
        table = rope_table(RopeSpec(theta=shape.rope_theta), shape.head_dim, LONGEST + 8, torch.device("cpu"))
        self.register_buffer("table", table, persistent=False)

    def draft(self, lesson: Lesson, num_steps: int) -> list[Tensor]:
        """Returns the logits [A, V] of each step, with the document's own tokens as drafts before."""
        hidden = self._combine(lesson.features)
        mixed = self._join(lesson.followers, hidden)
        keys, values = self._keys(mixed, lesson.places)
        anchors = lesson.anchors
        hidden, own, logits = hidden[anchors], [], []
        mixed = mixed[anchors]
        for step in range(num_steps):
            if step > 0:
                followers = lesson.followers[(anchors + step).clamp(max=len(lesson.followers) - 1)]
                mixed = self._join(followers, hidden)
                own.append(self._keys(mixed, lesson.places[anchors] + step))
            q = functional.linear(mixed, self.q).unflatten(-1, (-1, self.shape.head_dim))
            q = self._rotate(q, lesson.places[anchors] + step)
            hidden = hidden + functional.linear(attend(q, keys, values, own, lesson), self.o)
            gate, up = functional.linear(self._norm(hidden, self.post_norm), self.gate_up).chunk(2, dim=-1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, self.down)
            logits.append(functional.linear(self._norm(hidden, self.norm), self.lm_head))
        return logits

    def _combine(self, features: Tensor) -> Tensor:
        parts = features.float().chunk(len(self.shape.boundaries), dim=-1)
        pairs = zip(parts, self.fc_norm, strict=True)
        return functional.linear(torch.cat([self._norm(part, weight) for part, weight in pairs], dim=-1), self.fc)

    def _join(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        embeds = self._norm(self.embedding[token_ids], self.embed_norm)
        return torch.cat((embeds, self._norm(hidden, self.hidden_norm)), dim=-1)

    def _keys(self, mixed: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values [.., K, D]."""
        kv = functional.linear(mixed, self.kv).unflatten(-1, (-1, self.shape.head_dim))
        keys, values = kv.chunk(2, dim=1)
        return self._rotate(keys, places), values

    def _rotate(self, x: Tensor, places: Tensor) -> Tensor:
        cos, sin = self.table[places][:, None].chunk(2, dim=-1)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), (x.shape[-1],), weight, self.shape.rms_eps)


@torch.autocast("cpu", enabled=False)
def attend(q: Tensor, keys: Tensor, values: Tensor, own: list[tuple[Tensor, Tensor]], lesson: Lesson) -> Tensor:
    """Returns [A, Q D]: anchors see their document up to themselves, and their own earlier steps.

    q [A, Q, D], keys and values [T, K, D], those of own steps [A, K, D]. In float32: every document has a shape of
    its own, for each of which products in bf16 would first be compiled.
    """
    q, keys, values = q.float(), keys.float(), values.float()
    own = [(key.float(), value.float()) for key, value in own]
    shared, scale = q.shape[1] // keys.shape[1], q.shape[-1] ** -0.5
    grouped = q.unflatten(1, (-1, shared)) * scale  # [A, K, Q/K, D]
    mixed = []
    scores = [(grouped * key[:, :, None]).sum(-1) for key, _ in own]
    mine = torch.stack(scores, dim=-1) if own else grouped.new_empty(*grouped.shape[:3], 0)
    own_values = torch.stack([value for _, value in own], dim=2) if own else values.new_empty(0)
    own_parts = own_values.split(lesson.anchor_lens) if own else [own_values] * len(lesson.lens)
    parts = (part.split(lesson.anchor_lens) for part in (grouped, mine, lesson.places[lesson.anchors]))
    rows = (part.split(lesson.lens) for part in (keys, values))
    for query, scored, places, own_value, key, value in zip(*parts, own_parts, *rows, strict=True):
        length = len(key)
        seen = torch.arange(length) <= places[:, None]
        products = torch.einsum("akgd,tkd->akgt", query, key).masked_fill(~seen[:, None, None], float("-inf"))
        weights = torch.cat((products, scored), dim=-1).softmax(-1)
        part = torch.einsum("akgt,tkd->akgd", weights[..., :length], value)
        if own:
            part = part + torch.einsum("akgs,aksd->akgd", weights[..., length:], own_value)
        mixed.append(part)
    return torch.cat(mixed).flatten(1)
