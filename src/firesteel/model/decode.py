"""One decoding step of up to eight rows, from embedding to the next token, over fused ops.

The step reads and writes the same tensors every time, so that it can be captured: sampling, the last op, writes the
inputs of the next step. Nothing here waits for the device or looks at a value.

A row is a token with its own page table. Rows of one request, to verify drafted tokens, have equal tables and
consecutive positions; each sees the tokens of those before it. After such a step the caller loads the next one.

Shape letters: T rows, H hidden, V vocabulary, N pages that a request can hold, S page size.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from firesteel.kernels.stream.plan import ROUNDED
from firesteel.model.decode_operands import DecodeInputs, LayerOperands, StepOperands
from firesteel.model.decode_ops import DecodeError, DecodeOps
from firesteel.model.gpt_oss import GptOss, Ranks
from firesteel.model.host_batch import HostBatch
from firesteel.model.network_step import add_pages
from firesteel.model.step_ints import StepResult
from firesteel.types import Batch, KvCache, Taps

MOST_REQUESTS = 8


class DecodeStep:
    """A step to `load` with a batch and `run` as often as its pages have room.

    `inputs.token_ids` holds the last token.
    """

    def __init__(
        self,
        model: GptOss,
        cache: KvCache,
        ops: DecodeOps,
        *,
        num_requests: int,
        num_pages: int,
        dependent: bool = True,
        inputs: DecodeInputs | None = None,
        taps: Taps | None = None,
    ) -> None:
        """`num_pages` is the width of page tables; `dependent` launches each kernel before the last has ended.

        Without `inputs`, the step allocates its own. Each run writes `taps`, which have at least as many rows.
        """
        _check(model, num_requests)
        self.model = model
        self.cache = cache
        self.ops = ops
        self.num_requests, self.num_pages = num_requests, num_pages
        self.inputs = DecodeInputs.new(model, num_requests, num_pages) if inputs is None else inputs
        self.partial_sums = _new_partial_sums(model, self.inputs.r)
        self.taps = taps
        self.dependent = dependent

    @property
    def dependent(self) -> bool:
        return self._dependent

    @dependent.setter
    def dependent(self, value: bool) -> None:
        self._dependent = value
        boundaries = () if self.taps is None else self.taps.boundaries
        self._operands = StepOperands.build(self.model, self.cache, self.inputs, value, boundaries)

    @property
    def page_size(self) -> int:
        return self.cache.keys[0].shape[2]

    @torch.inference_mode()
    def load(self, batch: Batch | HostBatch, token_ids: Tensor | None = None) -> None:
        """Sets the first inputs; does not wait for the device, unless the batch is there.

        `token_ids` [T] on the device replace those of the batch; they may not be this step's own, which are
        overwritten first.
        """
        batch, inputs = batch if isinstance(batch, HostBatch) else HostBatch.of(batch), self.inputs
        if not batch.num_tokens == batch.num_requests == self.num_requests:
            raise DecodeError(
                f"a step of {self.num_requests} requests with one token each was given {batch.num_tokens} tokens "
                f"of {batch.num_requests} requests"
            )
        inputs.load(batch, self.page_size)
        if token_ids is not None:
            inputs.token_ids.copy_(token_ids)
        self._embed()

    @torch.inference_mode()
    def run(self) -> Tensor:
        """Returns the logits [T, V] fp32 of the sampled token; inputs are then those of the next step."""
        operands = self._operands
        num_rows, vocabulary = operands.lm_head.weight.shape[0], self.model.spec.vocab_size
        if num_rows != vocabulary:
            raise DecodeError(
                f"this rank holds {num_rows} of {vocabulary} rows of lm_head, and the next token is taken from "
                "all of them: call run_layers and gather the logits of all ranks"
            )
        logits, best = self.project_logits(self.run_layers())
        self.ops.sample(operands.sample(best=best))
        return logits

    @torch.inference_mode()
    def run_layers(self) -> Tensor:
        """Computes all layers from the embeddings in `inputs.r`; returns the residual [T, H] for the final norm."""
        if self.model.ranks is not None:
            return self._run_rank(self.model.ranks)
        for number, layer in enumerate(self._operands.layers):
            self._keep(number, self.inputs.r)
            self._attend(layer)
            self._mix(layer)
        self._keep(len(self._operands.layers), self.inputs.r)
        return self.inputs.r

    @torch.inference_mode()
    def project_logits(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the logits [T, V] fp32 of a residual, or those of a rank's rows of lm_head, and their ranking."""
        operands = self._operands.lm_head
        return self.ops.lm_head(operands if r is operands.r else replace(operands, r=r))

    @property
    def result(self) -> StepResult:
        return self.inputs.result

    @torch.inference_mode()
    def rest(self, page: int) -> None:
        """Sets inputs with which steps write into `page` only."""
        inputs = self.inputs
        for tensor in (inputs.token_ids, inputs.positions, inputs.num_stored, inputs.r):
            tensor.zero_()
        inputs.kv_lens.fill_(1)
        for view in (inputs.full, inputs.window):
            view.page_table.fill_(page)
            view.slots.fill_(page * self.page_size)

    def copy(self) -> list[Tensor]:
        """Returns clones of the input tensors."""
        return self.inputs.copy()

    def restore(self, copied: list[Tensor]) -> None:
        """Puts back the inputs that `copy` returned."""
        self.inputs.restore(copied)

    @torch.inference_mode()
    def feed(self, token_ids: Tensor) -> None:
        """Sets the next step's tokens in place of the most likely ones."""
        self.inputs.token_ids.copy_(token_ids)
        self._embed()

    @torch.inference_mode()
    def add_pages(self, rows: Tensor, columns: Tensor, full: Tensor, window: Tensor) -> None:
        """Appends pages for tokens to come: the next token of each of `rows` is the first of its page."""
        add_pages(self.inputs.full, rows, columns, full, self.page_size)
        add_pages(self.inputs.window, rows, columns, window, self.page_size)

    def _embed(self) -> None:
        """Begins the residual stream with the tokens' embeddings."""
        embedding, token_ids, r = self.model.weights.embedding, self.inputs.token_ids, self.inputs.r
        if embedding.dtype == r.dtype:
            torch.index_select(embedding, 0, token_ids, out=r)  # one launch
        else:
            r.copy_(embedding[token_ids])

    def _keep(self, boundary: int, residual: Tensor) -> None:
        if self.taps is not None:
            self.taps.keep(boundary, residual)

    def _attend(self, layer: LayerOperands) -> None:
        q, *_ = self.ops.qkv(layer.qkv)
        mixed = self.ops.attention(layer.attention(q=q))
        self.ops.o(layer.o(mixed=mixed))

    def _mix(self, layer: LayerOperands) -> None:
        logits = self.ops.router(layer.router)
        if layer.is_split:
            inner = self.ops.fc1(layer.fc1(logits=logits))
            self.ops.fc2(layer.fc2(inner=inner, logits=logits))
        else:
            self.ops.experts(layer.experts(logits=logits))

    def _run_rank(self, ranks: Ranks) -> Tensor:
        """Computes all layers of a tensor-parallel network.

        o and fc2 add to the residual on the first rank and to zeros on the others, so that the sum over ranks is
        the new residual and needs no further addition.
        """
        r, ops, sums = self.inputs.r, self.ops, self.partial_sums
        if sums is not None:
            sums.zero_()
        for number, layer in enumerate(self._operands.layers):
            self._keep(number, r)
            q, *_ = ops.qkv(replace(layer.qkv, r=r))
            mixed = ops.attention(layer.attention(q=q))
            r = ranks.add(ops.o(layer.o(mixed=mixed, r=r if sums is None else sums[number, 0])))
            logits = ops.router(replace(layer.router, r=r))
            inner = ops.fc1(layer.fc1(logits=logits, r=r))
            added_to = r if sums is None else sums[number, 1]
            r = ranks.add(ops.fc2(layer.fc2(inner=inner, logits=logits, r=added_to)))
        self._keep(len(self._operands.layers), r)
        return r


def _new_partial_sums(model: GptOss, r: Tensor) -> Tensor | None:
    """Returns [L, 2, T, H], what o and fc2 of each layer add to on a rank that does not add the residual, or None.

    Each has its own tensor, so that one operation clears them all for a step.
    """
    if model.ranks is None or model.ranks.is_first:
        return None
    return r.new_zeros(model.spec.num_layers, 2, *r.shape)


def _check(model: GptOss, num_requests: int) -> None:
    if not 1 <= num_requests <= MOST_REQUESTS:
        raise DecodeError(f"a decode step has 1 to {MOST_REQUESTS} requests, not {num_requests}")
    if model.activation not in ("bf16", ROUNDED):
        raise DecodeError(
            f"the decode ops do not round activations to {model.activation}: use --activation {ROUNDED} or bf16"
        )
    if model.tile != "auto":
        raise DecodeError(f"the decode ops have no tile to pin, and {model.tile} is pinned: use --tile auto")
