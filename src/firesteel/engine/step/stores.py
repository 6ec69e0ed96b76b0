"""The steps of an engine, of decoding requests and of prompts; they share memory, as only one runs at a time."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.config import BatchConfig, KernelConfig
from firesteel.device import DeviceSpec
from firesteel.engine.step.prompt_store import PromptStore
from firesteel.engine.step.runner import Runner
from firesteel.engine.step.step_store import FusedOps, StepStore
from firesteel.model.gpt_oss import GptOss
from firesteel.model.graphs import StepMemory
from firesteel.types import Taps


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStores:
    decoding: StepStore
    prompts: PromptStore

    @classmethod
    def new(
        cls,
        model: GptOss,
        runner: Runner,
        device: DeviceSpec,
        kernels: KernelConfig,
        config: BatchConfig,
        *,
        fused: FusedOps | None,
        idle_page: int,
        max_context: int,
        most_rows: int,
        eager_prompts: bool,
        taps: Taps | None,
    ) -> StepStores:
        """Makes no step yet. A decoding step has up to `most_rows`; all steps write `taps`."""
        memory = StepMemory(device, most_requests=most_rows, vocab_size=model.spec.vocab_size, taps=taps)
        decoding = StepStore(
            model,
            runner.cache,
            device,
            kernels,
            fused=fused,
            idle_page=idle_page,
            most_requests=most_rows,
            max_context=max_context,
            memory=memory,
        )
        prompts = PromptStore(
            runner.model,
            runner.cache,
            device,
            kernels,
            memory,
            most_tokens=config.max_num_batched_tokens,
            most_requests=config.max_num_seqs,
            max_context=max_context,
            eager=eager_prompts,
        )
        return cls(decoding=decoding, prompts=prompts)
