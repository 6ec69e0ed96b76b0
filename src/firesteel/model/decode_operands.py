"""The inputs of a decoding step, and the operands of its ops, built once per step.

A call adds only what the op ahead of it computed.

Shape letters: T rows with one token each, H hidden, N pages that a request can hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from firesteel.kernels.decode.attention_operands import DecodeAttentionOperands
from firesteel.kernels.decode.experts import DecodeExpertsOperands, fits
from firesteel.kernels.decode.fc1 import DecodeFc1Operands
from firesteel.kernels.decode.fc2 import DecodeFc2Operands
from firesteel.kernels.decode.lm_head import DecodeLmHeadOperands
from firesteel.kernels.decode.o import DecodeOOperands
from firesteel.kernels.decode.qkv_operands import DecodeQkvOperands
from firesteel.kernels.decode.router import DecodeRouterOperands
from firesteel.kernels.decode.sample import DecodeSampleOperands
from firesteel.kernels.operands.weights import Mxfp4Weight, weight_parts
from firesteel.model.decode_ops import DecodeError
from firesteel.model.gpt_oss import GptOss
from firesteel.model.host_batch import HostBatch, count_stored
from firesteel.model.step_ints import StepInts, StepResult
from firesteel.types import KvCache, KvView


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """Inputs of a step, which it leaves as those of the next step; page tables stay."""

    result: StepResult  # the tokens, and the logits that they had
    positions: Tensor  # [T] int64
    kv_lens: Tensor  # [T] int64, the new token included
    num_stored: Tensor  # [T] int64: those of its tokens that no row of the step writes
    full: KvView  # tables [T, N], with the pages of tokens to come
    window: KvView
    r: Tensor  # [T, H] residual stream: embeddings of the tokens
    ints: StepInts | None = None  # what holds the numbers; None if something else than `load` sets them

    @classmethod
    def new(cls, model: GptOss, num_requests: int, num_pages: int) -> DecodeInputs:
        """Returns inputs that hold zeros."""
        device = model.weights.embedding.device
        ints = StepInts(num_requests, num_pages, device, more={"num_stored": num_requests})
        full, window = (KvView(page_table=ints.page_tables[kind], slots=ints.slots[kind]) for kind in range(2))
        return cls(
            result=ints.result,
            positions=ints["positions"],
            kv_lens=ints["kv_lens"],
            num_stored=ints["num_stored"],
            full=full,
            window=window,
            r=torch.zeros(num_requests, model.spec.hidden_size, dtype=model.dtype, device=device),
            ints=ints,
        )

    @property
    def token_ids(self) -> Tensor:
        """The tokens [T], int64."""
        return self.result.token_ids

    def tensors(self) -> Iterator[Tensor]:
        yield from (self.token_ids, self.positions, self.kv_lens, self.num_stored, self.r)
        for view in (self.full, self.window):
            yield from (view.page_table, view.slots)

    def load(self, batch: HostBatch, page_size: int) -> None:
        """Sets all but the residual stream; what page tables hold beyond the batch's means nothing."""
        if self.ints is None:
            raise DecodeError("the inputs of this step are set by its owner")
        if batch.full_table.shape[1] > self.full.page_table.shape[1]:
            raise DecodeError(
                f"page tables of {batch.full_table.shape[1]} pages do not fit into {self.full.page_table.shape[1]}"
            )
        self.ints.load(batch, {"num_stored": count_stored(batch, page_size)})

    def copy(self) -> list[Tensor]:
        """Returns clones of the tensors."""
        return [tensor.clone() for tensor in self.tensors()]

    def restore(self, copied: list[Tensor]) -> None:
        """Puts back what `copy` returned."""
        for tensor, old in zip(self.tensors(), copied, strict=True):
            tensor.copy_(old)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOperands:
    """Operands of one layer. A partial lacks what its comment names.

    The ranks of a tensor-parallel network replace `r` at each call: a sum over ranks may be in another tensor.
    """

    qkv: DecodeQkvOperands
    attention: partial[DecodeAttentionOperands]  # q
    o: partial[DecodeOOperands]  # mixed
    router: DecodeRouterOperands
    experts: partial[DecodeExpertsOperands]  # logits
    fc1: partial[DecodeFc1Operands]  # logits
    fc2: partial[DecodeFc2Operands]  # inner, logits
    # fc1 and fc2 run in place of experts: the rows of the two matmuls differ in length, or ranks add partial sums,
    # and fc2 may add to something else than the residual.
    is_split: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOperands:
    """Operands of all ops of a step, which reads and writes `inputs`."""

    layers: tuple[LayerOperands, ...]
    lm_head: DecodeLmHeadOperands
    sample: partial[DecodeSampleOperands]  # best

    @classmethod
    def build(
        cls,
        model: GptOss,
        cache: KvCache,
        inputs: DecodeInputs,
        dependent: bool,
        boundaries: Collection[int] = (),
    ) -> StepOperands:
        """Builds the operands; with `dependent` each kernel but the first is launched before the last has ended.

        A kernel that follows a sum over ranks, or the copy of the residual at one of `boundaries`, is launched
        after it, because what adds or copies is not a decode kernel.
        """
        weights, num_layers = model.weights, model.spec.num_layers
        # What runs before the step is not a decode kernel either.
        follows_other = frozenset(range(num_layers + 1) if model.ranks is not None else (0, *boundaries))
        lm_head = DecodeLmHeadOperands(
            r=inputs.r,
            norm=weights.norm,
            eps=model.spec.rms_eps,
            weight=weights.lm_head,
            activation=find_rounding(model, weights.lm_head),
            dependent=dependent and num_layers not in follows_other,
        )
        sample = partial(
            DecodeSampleOperands,
            embedding=weights.embedding,
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            kv_lens=inputs.kv_lens,
            num_stored=inputs.num_stored,
            full_slots=inputs.full.slots,
            window_slots=inputs.window.slots,
            full_table=inputs.full.page_table,
            window_table=inputs.window.page_table,
            page_size=cache.keys[0].shape[2],
            r=inputs.r,
            largest=inputs.result.best,
            dependent=dependent,
        )
        layers = (
            _build_layer(model, cache, inputs, number, dependent, is_behind=number in follows_other)
            for number in range(num_layers)
        )
        return cls(layers=tuple(layers), lm_head=lm_head, sample=sample)


def _build_layer(
    model: GptOss, cache: KvCache, inputs: DecodeInputs, number: int, dependent: bool, *, is_behind: bool
) -> LayerOperands:
    """Builds the operands of a layer; if it `is_behind` another kind of kernel, it waits for all of that."""
    spec, layer, window = model.spec, model.weights.layers[number], model.spec.windows[number]
    view = inputs.full if window is None else inputs.window
    pages: dict[str, Any] = {"k_pages": cache.keys[number], "v_pages": cache.values[number]}
    pages["key_scale"], pages["value_scale"] = model.find_scales(number)
    after: dict[str, Any] = {"r": inputs.r, "dependent": dependent}
    follows_sum = model.ranks is not None
    normed: dict[str, Any] = {"norm": layer.post_norm, "eps": spec.rms_eps}
    routed: dict[str, Any] = {"experts": layer.plain_experts, "activation": model.activation}
    limits: dict[str, Any] = {"limit": spec.swiglu_limit, "active": spec.num_active}
    return LayerOperands(
        qkv=DecodeQkvOperands(
            r=inputs.r,
            norm=layer.input_norm,
            eps=spec.rms_eps,
            weight=layer.qkv,
            bias=layer.qkv_bias,
            table=model.table,
            positions=inputs.positions,
            slots=view.slots,
            activation=find_rounding(model, layer.qkv),
            clipped=cache.saturated,
            dependent=dependent and not is_behind,
            **pages,
        ),
        attention=partial(
            DecodeAttentionOperands,
            page_table=view.page_table,
            kv_lens=inputs.kv_lens,
            num_stored=inputs.num_stored,
            sinks=layer.sinks if model.sinks else None,
            window=window,
            scale=spec.head_dim**-0.5,
            dependent=dependent,
            **pages,
        ),
        o=partial(
            DecodeOOperands,
            weight=layer.o,
            bias=layer.o_bias,
            activation=find_rounding(model, layer.o),
            **after,
        ),
        router=DecodeRouterOperands(
            r=inputs.r,
            weight=layer.router,
            bias=layer.router_bias,
            dependent=dependent and not follows_sum,
            **normed,
        ),
        experts=partial(
            DecodeExpertsOperands, ahead=_find_ahead(model, number), **normed, **routed, **limits, **after
        ),
        fc1=partial(DecodeFc1Operands, **normed, **routed, **limits, **after),
        fc2=partial(DecodeFc2Operands, **routed, **after),
        is_split=follows_sum or not fits(layer.plain_experts),
    )


def _find_ahead(model: GptOss, number: int) -> Tensor:
    """Returns the weights that the kernel after this layer streams."""
    weights = model.weights
    is_last = number + 1 == len(weights.layers)
    return weight_parts(weights.lm_head if is_last else weights.layers[number + 1].qkv)[0]


def find_rounding(model: GptOss, weight: Tensor | Mxfp4Weight) -> str:
    """Returns what activations are rounded to before they meet the weight."""
    return model.activation if isinstance(weight, Mxfp4Weight) else "bf16"
