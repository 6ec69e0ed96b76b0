"""Steps that verify several consecutive tokens of each request, as the engine runs them.

A row is one token: its position, and the page table of its request. Rows of a request have consecutive positions
and equal page tables, so that each sees the keys and values of those before it.

Shape letters: T rows, N pages that a request can hold, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.config import Config
from firesteel.device import DeviceSpec
from firesteel.engine.load import Loaded
from firesteel.measure.decode.bench import open_pages
from firesteel.measure.decode.steps import PASS_STEPS, STALE, Pages, RunStep, first_batch
from firesteel.measure.speculate.figures import VerifyCase
from firesteel.measure.tokens.runs import SEED
from firesteel.model.decode import MOST_REQUESTS, DecodeStep
from firesteel.model.decode_ops import DecodeOps
from firesteel.model.graphs import WARMUPS, StepGraph
from firesteel.model.network_step import NetworkStep
from firesteel.types import Batch, KvCache

AnyStep = DecodeStep | NetworkStep
ROOM = max(PASS_STEPS, WARMUPS) + 1  # tokens that each row gains before its inputs are restored


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyStep:
    """A step that holds a batch of rows, and how it is launched."""

    step: AnyStep
    first: list[Tensor]  # inputs
    run: RunStep
    way: str

    def reset(self) -> None:
        self.step.restore(self.first)


def first_rows(token_ids: Sequence[int], case: VerifyCase, pages: Pages, cache: KvCache) -> Batch:
    """Builds the batch of `case.rows` tokens of each request, which follow the tokens that it holds."""
    positions = [case.context + row for _ in range(case.requests) for row in range(case.rows)]
    tables = (table.repeat_interleave(case.rows, dim=0) for table in (pages.full, pages.window))
    full, window = tables
    return first_batch(token_ids, positions, Pages(full=full, window=window, count=pages.count), cache)


def open_step(case: VerifyCase, loaded: Loaded, config: Config, ops: DecodeOps | None) -> VerifyStep:
    """Builds the step that the engine would take: that of the fused `ops` for up to eight rows, else the network's.

    Rows hold random tokens, which choose experts nearly independently of each other: those of a text share more.
    """
    pages, cache = open_pages(loaded, config, [case.context] * case.requests, room=case.rows + ROOM)
    vocab_size = loaded.spec.vocab_size
    drawn = torch.randint(vocab_size, (case.all_rows,), generator=torch.Generator().manual_seed(SEED))
    batch = first_rows(drawn.tolist(), case, pages, cache)
    if ops is not None and case.all_rows <= MOST_REQUESTS:
        step: AnyStep = DecodeStep(
            loaded.model,
            cache,
            ops,
            num_requests=case.all_rows,
            num_pages=pages.width,
            dependent=config.kernels.dependent_launch,
        )
        name = f"fused step, {'dependent' if config.kernels.dependent_launch else 'plain'} launch"
    else:
        logits = torch.empty(case.all_rows, vocab_size, device=loaded.device.torch_device)
        step = NetworkStep(
            loaded.model,
            cache,
            num_requests=case.all_rows,
            num_pages=pages.width,
            idle_page=STALE,
            logits=logits,
        )
        name = "network"
    step.load(batch)
    run, launch = launch_step(step, loaded.device, has_graphs=config.kernels.cuda_graphs)
    return VerifyStep(step=step, first=step.copy(), run=run, way=f"{name}, {launch}")


def launch_step(step: AnyStep, device: DeviceSpec, *, has_graphs: bool) -> tuple[RunStep, str]:
    """Returns a function that runs `step` once, and how it launches the kernels."""
    if not (has_graphs and device.is_cuda):
        return step.run, "eager"
    begin = step.copy()
    graph = StepGraph(step.run, step.model.kernels.ledger, device, undo=lambda: step.restore(begin))
    return graph.replay, "CUDA graph"
