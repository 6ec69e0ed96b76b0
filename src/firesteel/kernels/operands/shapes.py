"""Random tensors of a model's shapes on a device, and the workloads that ops draw from them for benchmarks.

M is the number of tokens of a step. As in the network, ops that follow a norm get their activations as the norm
stored them. Draws differ, so that a rotation through several of them reads other memory each time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from firesteel.device import DeviceSpec, find_capability
from firesteel.formats.group import SIZE
from firesteel.kernels.operands.activation import is_native
from firesteel.kernels.operands.fed import Fed, store
from firesteel.kernels.operands.weights import Experts, Mxfp4Weight, random_experts
from firesteel.kernels.rope import RopeSpec, rope_table

SEED = 1
PAGE_SIZE = 64
MOST_DECODED = 512  # requests that are decoded together
EXPERT_COPIES = 2  # so that consecutive calls share no expert


class WorkloadPart(NamedTuple):
    """One use of an op. `held_bytes` is the approximate size of its arguments, known before they are drawn."""

    label: str
    flops: float
    held_bytes: int
    draw: Callable[[], tuple[Any, ...]]


class ModelSizes(Protocol):
    """The facts of a model that workloads depend on."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def q_size(self) -> int: ...
    @property
    def kv_size(self) -> int: ...
    @property
    def num_experts(self) -> int: ...
    @property
    def num_active(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_context(self) -> int: ...
    @property
    def windows(self) -> tuple[int | None, ...]: ...
    @property
    def rope(self) -> RopeSpec: ...
    @property
    def rms_eps(self) -> float: ...
    @property
    def swiglu_limit(self) -> float: ...


class ModelShapes:
    """Draws tensors of a model's shapes on a device; `expert_copies` sets of experts are made once and shared."""

    def __init__(self, spec: ModelSizes, device: DeviceSpec, *, expert_copies: int = EXPERT_COPIES) -> None:
        self.spec = spec
        self.expert_copies = expert_copies
        self.device = device.torch_device
        self.dtype = device.dtype
        self.generator = torch.Generator(self.device).manual_seed(SEED)
        self._turn = itertools.count()
        self._experts: dict[int, Experts] = {}

    def normal(self, *shape: int) -> Tensor:
        """Draws normal values in the type of activations."""
        return torch.randn(shape, generator=self.generator, device=self.device, dtype=self.dtype)

    def fed(self, x: Tensor, activation: str) -> Fed:
        """Returns x as a norm stores it on this device."""
        return store(x, activation, is_native(find_capability(self.device), activation))

    def weight(self, rows: int, columns: int) -> Tensor:
        """Draws bf16 weights of about unit gain."""
        drawn = torch.randn(rows, columns, generator=self.generator, device=self.device, dtype=torch.bfloat16)
        return drawn.mul_(columns**-0.5)

    def bias(self, rows: int) -> Tensor:
        drawn = torch.randn(rows, generator=self.generator, device=self.device, dtype=torch.bfloat16)
        return drawn.mul_(0.1)

    def mxfp4_weight(self, rows: int, columns: int) -> Mxfp4Weight:
        """Draws random codes; quantising real rows would take longer than measuring."""
        codes = self.integers(256, rows, columns // 2, dtype=torch.uint8)
        scales = torch.full((rows, columns // SIZE), 119, dtype=torch.uint8, device=self.device)
        return Mxfp4Weight(codes=codes, scales=scales)

    def integers(self, end: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.randint(end, shape, generator=self.generator, device=self.device, dtype=dtype)

    def permutation(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator, device=self.device)

    def routing(self, tokens: int) -> tuple[Tensor, Tensor]:
        """Returns (ids, weights) [T, A]; all experts are equally likely."""
        scores = torch.rand(tokens, self.spec.num_experts, generator=self.generator, device=self.device)
        chosen, ids = scores.topk(self.spec.num_active)
        return ids, chosen.softmax(-1)

    def next_experts(self) -> Experts:
        """Returns the copies in turn."""
        spec, copy = self.spec, next(self._turn) % self.expert_copies
        if copy not in self._experts:
            sizes = spec.num_experts, spec.hidden_size, spec.intermediate_size
            self._experts[copy] = random_experts(*sizes, self.generator)
        return self._experts[copy]

    @functools.cached_property
    def rope_table(self) -> Tensor:
        return rope_table(self.spec.rope, self.spec.head_dim, self.spec.max_context, self.device)

    @property
    def experts_bytes(self) -> int:
        """Size of one copy: codes and scales take 17 bytes per 32 weights."""
        spec = self.spec
        return spec.num_experts * 3 * spec.hidden_size * spec.intermediate_size * 17 // 32

    def token_bytes(self) -> int:
        """Returns the size of the keys and values of one token."""
        return 2 * self.spec.kv_size * self.dtype.itemsize


MakeWorkloads = Callable[[ModelShapes, int, str], Iterator[WorkloadPart]]
