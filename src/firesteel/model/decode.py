"""One decoding step of up to eight requests, from embedding to the next token, over fused ops; knows no graph.

The step reads and writes the same tensors every time, so that it can be captured: sampling, the last op, writes the
inputs of the next step. Nothing here waits for the device or looks at a value.

Shape letters: T requests with one token each, H hidden, V vocabulary, N pages a request can hold, S page size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.errors import UserError
from firesteel.kernels.decode.experts import fits
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.stream.launch import ROUNDED, weight_parts
from firesteel.model.decode_ops import DecodeOps
from firesteel.model.gpt_oss import GptOss
from firesteel.model.network_step import add_pages
from firesteel.model.report import Report
from firesteel.types import Batch, KvCache, KvView

MOST_REQUESTS = 8


class DecodeError(UserError):
    """A step that the decode ops cannot compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """What a step reads and the next one finds changed; page tables stay."""

    report: Report  # the tokens, and the logits that they had
    positions: Tensor  # [T] int64
    kv_lens: Tensor  # [T] int64, the new token included
    full: KvView  # tables [T, N], with the pages of tokens to come
    window: KvView
    r: Tensor  # [T, H] residual stream: embeddings of the tokens

    @property
    def token_ids(self) -> Tensor:
        """[T] int64"""
        return self.report.token_ids

    def tensors(self) -> Iterator[Tensor]:
        yield from (self.token_ids, self.positions, self.kv_lens, self.r)
        for view in (self.full, self.window):
            yield from (view.page_table, view.slots)

    def copy(self) -> list[Tensor]:
        return [tensor.clone() for tensor in self.tensors()]

    def restore(self, copied: list[Tensor]) -> None:
        """To what `copy` gave."""
        for tensor, old in zip(self.tensors(), copied, strict=True):
            tensor.copy_(old)


class DecodeStep:
    """`load` a batch, then `run` as often as its pages have room; `inputs.token_ids` holds the last token."""

    def __init__(
        self,
        model: GptOss,
        cache: KvCache,
        ops: DecodeOps,
        *,
        num_requests: int,
        num_pages: int,
        dependent: bool = True,
    ) -> None:
        """`num_pages` is the width of page tables; `dependent` launches each kernel before the last has ended."""
        _check(model, num_requests)
        self.model = model
        self.cache = cache
        self.dependent = dependent
        self.ops = ops
        self.num_requests, self.num_pages = num_requests, num_pages
        self.inputs = _new_inputs(model, num_requests, num_pages)
        self._best = self.inputs.report.best

    @property
    def page_size(self) -> int:
        return self.cache.keys[0].shape[2]

    @torch.inference_mode()
    def load(self, batch: Batch) -> None:
        """The first inputs; tables narrower than ours end in page 0, where nothing may be written."""
        inputs = self.inputs
        if batch.token_ids.shape != inputs.token_ids.shape or batch.kv_lens.shape != inputs.kv_lens.shape:
            raise DecodeError(
                f"a step of {inputs.token_ids.shape[0]} requests with one token each was given "
                f"{batch.token_ids.shape[0]} tokens of {batch.kv_lens.shape[0]} requests"
            )
        inputs.token_ids.copy_(batch.token_ids)
        inputs.positions.copy_(batch.positions)
        inputs.kv_lens.copy_(batch.kv_lens)
        inputs.r.copy_(self.model.weights.embedding[batch.token_ids])
        _load_view(inputs.full, batch.full)
        _load_view(inputs.window, batch.window)

    @torch.inference_mode()
    def run(self) -> Tensor:
        """[T, V] fp32 logits of the token that was sampled; inputs are then those of the next step."""
        model, inputs = self.model, self.inputs
        for number in range(model.spec.num_layers):
            self.attend(number)
            self.mix(number)
        logits, best = self.ops.lm_head(
            inputs.r, model.weights.norm, model.spec.rms_eps, model.weights.lm_head,
            self.rounding(model.weights.lm_head), self.dependent,
        )  # fmt: skip
        self.ops.sample(
            best, model.weights.embedding, inputs.token_ids, inputs.positions, inputs.kv_lens, inputs.full.slots,
            inputs.window.slots, inputs.full.page_table, inputs.window.page_table, self.page_size, inputs.r,
            self._best, self.dependent,
        )  # fmt: skip
        assert isinstance(logits, Tensor)
        return logits

    @property
    def report(self) -> Report:
        return self.inputs.report

    @torch.inference_mode()
    def rest(self, page: int) -> None:
        """Inputs that make steps write into `page` only."""
        inputs = self.inputs
        for numbers, value in ((inputs.token_ids, 0), (inputs.positions, 0), (inputs.kv_lens, 1), (inputs.r, 0)):
            numbers.fill_(value)
        for view in (inputs.full, inputs.window):
            view.page_table.fill_(page)
            view.slots.fill_(page * self.page_size)

    def copy(self) -> list[Tensor]:
        """Of the inputs."""
        return self.inputs.copy()

    def restore(self, copied: list[Tensor]) -> None:
        """To what `copy` gave."""
        self.inputs.restore(copied)

    @torch.inference_mode()
    def feed(self, token_ids: Tensor) -> None:
        """The next step's tokens in place of the likeliest."""
        self.inputs.token_ids.copy_(token_ids)
        self.inputs.r.copy_(self.model.weights.embedding[token_ids])

    @torch.inference_mode()
    def add_pages(self, rows: Tensor, columns: Tensor, full: Tensor, window: Tensor) -> None:
        """The tokens to come of `rows` are the first of these pages."""
        add_pages(self.inputs.full, rows, columns, full, self.page_size)
        add_pages(self.inputs.window, rows, columns, window, self.page_size)

    def attend(self, number: int) -> None:
        model, inputs, cache = self.model, self.inputs, self.cache
        spec, layer, window = model.spec, model.weights.layers[number], model.spec.windows[number]
        view = inputs.full if window is None else inputs.window
        scales = model.find_scales(number)
        # What ran before the step is no kernel of ours: the first waits for all of it.
        q, keys, values, *_ = self.ops.qkv(
            inputs.r, layer.input_norm, spec.rms_eps, layer.qkv, layer.qkv_bias, model.table, inputs.positions,
            view.slots, cache.keys[number], cache.values[number], self.rounding(layer.qkv),
            *scales, cache.saturated, self.dependent and number > 0,
        )  # fmt: skip
        mixed = self.ops.attention(
            q, keys, values, view.page_table, inputs.kv_lens, layer.sinks if model.sinks else None, window,
            spec.head_dim**-0.5, *scales, self.dependent,
        )  # fmt: skip
        self.ops.o(mixed, layer.o, layer.o_bias, inputs.r, self.rounding(layer.o), self.dependent)

    def mix(self, number: int) -> None:
        spec, layer, r = self.model.spec, self.model.weights.layers[number], self.inputs.r
        logits = self.ops.router(r, layer.post_norm, spec.rms_eps, layer.router, layer.router_bias, self.dependent)
        args = (
            r, layer.post_norm, spec.rms_eps, logits, layer.experts, spec.swiglu_limit, spec.num_active,
            self.model.activation,
        )  # fmt: skip
        if fits(layer.experts):
            self.ops.experts(*args, self._ahead(number), self.dependent)
        else:
            inner = self.ops.fc1(*args, self.dependent)
            self.ops.fc2(inner, logits, layer.experts, r, self.model.activation, self.dependent)

    def _ahead(self, number: int) -> Tensor:
        """What the kernel after this layer streams."""
        weights = self.model.weights
        last = number + 1 == len(weights.layers)
        return weight_parts(weights.lm_head if last else weights.layers[number + 1].qkv)[0]

    def rounding(self, weight: Tensor | Mxfp4Weight) -> str:
        """What meets the weight is rounded to this."""
        return self.model.activation if isinstance(weight, Mxfp4Weight) else "bf16"


def _new_inputs(model: GptOss, num_requests: int, num_pages: int) -> DecodeInputs:
    device = model.weights.embedding.device

    def whole(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    def view() -> KvView:
        return KvView(page_table=whole(num_requests, num_pages), slots=whole(num_requests))

    return DecodeInputs(
        report=Report.new(num_requests, device), positions=whole(num_requests), kv_lens=whole(num_requests),
        full=view(), window=view(),
        r=torch.zeros(num_requests, model.spec.hidden_size, dtype=model.dtype, device=device),
    )  # fmt: skip


def _load_view(ours: KvView, given: KvView) -> None:
    width = given.page_table.shape[1]
    if width > ours.page_table.shape[1]:
        raise DecodeError(f"page tables of {width} pages do not fit into {ours.page_table.shape[1]}")
    ours.page_table.zero_()
    ours.page_table[:, :width].copy_(given.page_table)
    ours.slots.copy_(given.slots)


def _check(model: GptOss, num_requests: int) -> None:
    if not 1 <= num_requests <= MOST_REQUESTS:
        raise DecodeError(f"a decode step has 1 to {MOST_REQUESTS} requests, not {num_requests}")
    if model.activation not in ("bf16", ROUNDED):
        raise DecodeError(
            f"the decode ops do not round activations to {model.activation}: use --activation {ROUNDED} or bf16"
        )
    if model.tile != "auto":
        raise DecodeError(f"the decode ops have no tile to pin, and {model.tile} is pinned: use --tile auto")
