"""LLM: a checkpoint with its tokenizer, for Python users; knows no server."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from firesteel.chat.tokenizer import Tokenizer
from firesteel.config import parse_layers, resolve
from firesteel.device import find_device
from firesteel.engine.lockstep import Lockstep, Row
from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.kernels import Kernels, parse_pins
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.requirement import parse_requirements
from firesteel.model.gpt_oss import GptOss
from firesteel.model.precision import held_layers
from firesteel.model.reader import Progress
from firesteel.model.spec import read_spec
from firesteel.model.weights import load_weights
from firesteel.types import Completion, SamplingParams

Prompt = str | Sequence[int]  # text, or token ids


class LLM:
    """`LLM("DIR", device="cpu", page_size=16)`: any knob of config.py is a keyword."""

    def __init__(self, model: str | Path = "", *, progress: Progress | None = None, **knobs: Any) -> None:
        self.settings = resolve({"model": str(model) or None, **knobs})
        config = self.settings.config
        self.directory = find_checkpoint(config.model.model)
        stored = read_spec(self.directory)
        layers = held_layers(stored.mxfp4_layers, parse_layers(config.kernels.mxfp4_layers))
        self.spec = replace(stored, mxfp4_layers=layers)
        self.device = find_device(config.model.device)
        self.kernels = Kernels(
            self.device, parse_pins(config.kernels.kernels), Ledger(),
            required=parse_requirements(config.kernels.require), activation=config.kernels.activation,
        )  # fmt: skip
        self.max_context = config.model.max_model_len or self.spec.max_context
        if self.max_context > self.spec.max_context:
            raise UserError(f"max_model_len = {self.max_context}: the checkpoint reaches {self.spec.max_context}")
        self.tokenizer = Tokenizer.load(self.directory)
        self.stop_ids = read_stop_ids(self.directory)
        weights, self.load_report = load_weights(
            self.directory, stored, self.device, workers=config.model.load_workers,
            reserve_gib=config.model.memory_reserve_gib, progress=progress, held=self.spec,
        )  # fmt: skip
        self.model = GptOss(
            self.spec, weights, self.kernels, self.device, max_context=self.max_context,
            sinks=config.kernels.sinks, activation=config.kernels.activation, tile=config.kernels.tile,
        )  # fmt: skip
        self.engine = Lockstep(self.model, self.device, config.batch)

    @property
    def ledger(self) -> Ledger:
        return self.kernels.ledger

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Completion]:
        """Continues every prompt; `progress` is called with the number finished and the number in all."""
        rows = self._rows(prompts, params)
        finished = 0
        for stepped in self.engine.run(rows):
            ended = sum(row.finish_reason is not None for row in stepped)
            finished += ended
            if progress and ended:
                progress(finished, len(rows))
        return [self._completion(row) for row in rows]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """The text of one continuation, piece by piece, stop token left out."""
        row = self._rows([prompt], params)[0]
        text = self.tokenizer.stream()
        for _ in self.engine.run([row]):
            if row.finish_reason != "stop":
                yield text.push(row.token_ids[-1])
        yield text.flush()

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """float32 [T, V] on the CPU: row t is what follows token t."""
        return self.engine.logits(self._checked(token_ids, room=0)).cpu()

    def _rows(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Row]:
        if isinstance(prompts, str):
            raise UserError("generate takes a list of prompts; for one text pass [text]")
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise UserError(f"{len(prompts)} prompts but {len(params)} sampling parameters")
        return [self._row(prompt, one) for prompt, one in zip(prompts, params, strict=True)]

    def _row(self, prompt: Prompt, params: SamplingParams) -> Row:
        token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        token_ids = self._checked(token_ids, room=1)
        stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.stop_ids)
        room = self.max_context - len(token_ids)
        params = replace(params, max_tokens=min(params.max_tokens, room))
        return Row(token_ids, params, stops, len(token_ids))

    def _checked(self, prompt: Sequence[int], *, room: int) -> list[int]:
        try:
            token_ids = [operator.index(token) for token in prompt]
        except TypeError as error:
            raise UserError(f"a prompt is a text or a list of token ids, not {prompt!r:.80}") from error
        if not token_ids:
            raise UserError("the prompt is empty: at least one token is needed")
        if len(token_ids) + room > self.max_context:
            raise UserError(
                f"the prompt has {len(token_ids)} tokens, the context {self.max_context}: shorten the prompt"
            )
        for token in token_ids:
            if not 0 <= token < self.spec.vocab_size:
                raise UserError(f"token id {token} is outside the vocabulary of {self.spec.vocab_size}")
        return token_ids

    def _completion(self, row: Row) -> Completion:
        shown = row.new_token_ids[:-1] if row.finish_reason == "stop" else row.new_token_ids
        return Completion(
            token_ids=row.new_token_ids,
            text=self.tokenizer.decode(shown),
            finish_reason=row.finish_reason or "length",
        )


def read_stop_ids(directory: Path) -> frozenset[int]:
    """End-of-sequence tokens from generation_config.json, else from config.json."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.is_file():
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise UserError(f"{path} is not valid JSON: {error}") from error
            ids = content.get("eos_token_id") if isinstance(content, dict) else None
            if ids is not None:
                ids = ids if isinstance(ids, list) else [ids]
                if not all(type(one) is int for one in ids):
                    raise UserError(f"{path}: eos_token_id must be a token id or a list of them, not {ids!r}")
                return frozenset(ids)
    return frozenset()
