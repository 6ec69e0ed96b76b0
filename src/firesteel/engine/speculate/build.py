"""Builds the speculation that the settings ask for."""

from __future__ import annotations

import torch

from firesteel.config import BatchConfig, SpeculateConfig
from firesteel.device import DeviceSpec
from firesteel.engine.schedule.scheduler import Scheduler
from firesteel.engine.speculate.copying import CopyingSpeculator
from firesteel.engine.speculate.draft_store import DraftStore
from firesteel.engine.speculate.drafting import DraftingSpeculator
from firesteel.engine.speculate.measure import measure_rows
from firesteel.engine.speculate.policy import DraftPolicy
from firesteel.engine.speculate.speculator import Speculator
from firesteel.engine.statistics import Statistics
from firesteel.engine.step.step_store import StepStore
from firesteel.errors import UserError
from firesteel.model.drafters.draft_sizes import DraftSizes
from firesteel.model.drafters.drafter import Drafter
from firesteel.model.gpt_oss import GptOss
from firesteel.model.prompt_sizes import prompt_sizes
from firesteel.types import Taps

MOST_DRAFTED = {"eagle3": 3}  # tokens by default: each takes a pass of the network; others draft what they can


def build_speculator(
    config: SpeculateConfig,
    drafts: DraftStore | None,
    scheduler: Scheduler,
    store: StepStore,
    totals: Statistics,
) -> Speculator | None:
    """Returns what drafts for an engine, by a network if `drafts` are given, or None if nothing does."""
    if config.speculate == "off":
        return None
    policy = DraftPolicy(
        most_rows=store.most_requests,
        adapts=config.adapt_speculation,
        totals=totals,
        measure=lambda: measure_rows(store),
    )
    if drafts is None and config.speculate not in ("ngram", "auto"):
        raise UserError(f"--speculate {config.speculate} needs a draft model: give --draft-model FOLDER or NAME")
    if drafts is None:
        return CopyingSpeculator(policy, scheduler.find, most=config.num_speculative_tokens)
    return DraftingSpeculator(drafts, policy, scheduler.find, reserve=scheduler.reserve)


def find_draft_sizes(config: SpeculateConfig, drafter: Drafter, most_requests: int) -> DraftSizes:
    """Returns the sizes of drafting steps, with as many tokens as settings and drafter allow."""
    asked = config.num_speculative_tokens or MOST_DRAFTED.get(drafter.name, drafter.most_tokens)
    return DraftSizes(min(asked, drafter.most_tokens), most_requests, is_one_pass=drafter.is_one_pass)


def new_taps(drafter: Drafter, model: GptOss, device: DeviceSpec, config: BatchConfig, most_rows: int) -> Taps:
    """Allocates the residuals that a step keeps for `drafter`; a decoding step has `most_rows`."""
    padded = prompt_sizes(config.max_num_batched_tokens, config.max_num_seqs)[-1].tokens
    most_tokens = max(config.max_num_batched_tokens, padded, most_rows)
    width = len(drafter.boundaries) * model.spec.hidden_size
    rows = torch.zeros(most_tokens, width, dtype=model.dtype, device=device.torch_device)
    return Taps(boundaries=drafter.boundaries, rows=rows)
