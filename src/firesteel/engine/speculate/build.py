"""Builds the speculation that the settings ask for."""

from __future__ import annotations

import logging
from dataclasses import dataclass

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
from firesteel.model.decode import MOST_REQUESTS as MOST_FUSED
from firesteel.model.drafters.draft_sizes import DraftSizes
from firesteel.model.drafters.drafter import Drafter
from firesteel.model.gpt_oss import GptOss
from firesteel.model.prompt_sizes import prompt_sizes
from firesteel.types import Taps

_log = logging.getLogger(__name__)
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
    most = store.most_requests - 1 if drafts is None else min(drafts.padded.most, store.most_requests - 1)
    if config.num_speculative_tokens > most:
        drafter = "steps of this --max-num-seqs verify" if drafts is None else f"{drafts.drafter.name} drafts"
        _log.warning("--num-speculative-tokens %d: %s at most %d", config.num_speculative_tokens, drafter, most)
    if drafts is None:
        return CopyingSpeculator(policy, scheduler.find, most=config.num_speculative_tokens)
    return DraftingSpeculator(drafts, policy, scheduler.find, reserve=scheduler.reserve)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftNeeds:
    """What drafts need of an engine's memory; the defaults are those without a draft network."""

    most_rows: int  # of a decoding step, which verifies drafts
    page_bytes: int = 0  # of keys and values of the draft network
    sizes: DraftSizes | None = None  # of its steps
    taps: Taps | None = None  # that it reads


def find_needs(
    config: SpeculateConfig, drafter: Drafter | None, model: GptOss, device: DeviceSpec, batch: BatchConfig
) -> DraftNeeds:
    """Returns what drafts need; allocates the residuals that a draft network reads."""
    if config.speculate == "off":
        return DraftNeeds(most_rows=batch.max_num_seqs)
    most_rows = max(batch.max_num_seqs, MOST_FUSED)
    if drafter is None:
        return DraftNeeds(most_rows=most_rows)
    return DraftNeeds(
        most_rows=most_rows,
        page_bytes=drafter.page_bytes(batch.page_size),
        sizes=find_draft_sizes(config, drafter, batch.max_num_seqs),
        taps=new_taps(drafter, model, device, batch, most_rows),
    )


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
