"""vLLM's `--speculative-config`: JSON that says what drafts tokens, as settings of ours.

Keys that change nothing here are accepted with a line that says what is done instead; keys that would change what
is drafted or verified, and unknown ones, are errors.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firesteel.config.speculate_section import DRAFT_KINDS
from firesteel.errors import UserError

FLAG = "--speculative-config"
EXAMPLE = '{"method": "eagle3", "model": "nvidia/gpt-oss-120b-Eagle3-v3", "num_speculative_tokens": 3}'
METHODS = tuple(kind for kind in DRAFT_KINDS if kind not in ("off", "auto"))
REFUSED_METHODS = {  # method of vLLM -> what to do here
    "ngram_gpu": "n-grams are looked up on the host: write ngram",
    "suffix": "suffix trees are not built: ngram copies from the request's own text",
    "eagle": "EAGLE-1 heads are not read: take an Eagle3 head, with eagle3",
    "medusa": "Medusa heads are not read: take an Eagle3 head, with eagle3",
    "mlp_speculator": "such heads are not read: take an Eagle3 head, with eagle3",
    "draft_model": "a whole language model does not draft here: take an Eagle3 head or a DFlash drafter",
    "mtp": "gpt-oss has no layers for multi-token prediction: take an Eagle3 head, with eagle3",
    "dspark": "DSpark drafters are not read: take a DFlash drafter, with dflash",
}
SHOWN = 200  # characters of what was given, in an error
NGRAM_NAMES = ("ngram", "[ngram]")  # what vLLM takes as the model of n-gram drafts
ANY_COUNT, SWITCH = "a whole number from 1 on", "must be on or off"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadKey:
    """A key that no setting holds. Null and `accepted` change nothing; any other value is an error."""

    accepted: tuple[Any, ...] = ()
    meaning: str = ""  # what is done here
    refusal: str = ""  # why no other value is possible
    is_count: bool = False  # any number from 1 on is accepted

    def accepts(self, value: Any) -> bool:
        if self.is_count:
            return is_count(value)
        return any(value == known and type(value) is type(known) for known in self.accepted)


ONE_GPU = "firesteel runs on one GPU"
LOOKED_UP = "drafts are what followed the latest earlier occurrence of the last 3 tokens"
UNREAD_KEYS = {
    "draft_tensor_parallel_size": UnreadKey(accepted=(1,), meaning=ONE_GPU, refusal=ONE_GPU),
    "tensor_parallel_size": UnreadKey(accepted=(1,), meaning=ONE_GPU, refusal=ONE_GPU),
    "use_local_argmax_reduction": UnreadKey(accepted=(True, False), meaning=ONE_GPU, refusal=SWITCH),
    "prompt_lookup_max": UnreadKey(is_count=True, meaning=LOOKED_UP, refusal=f"must be {ANY_COUNT}"),
    "prompt_lookup_min": UnreadKey(is_count=True, meaning=LOOKED_UP, refusal=f"must be {ANY_COUNT}"),
    "parallel_drafting": UnreadKey(
        accepted=(False,),
        refusal="dflash always drafts in one pass, eagle3 token by token: leave it out",
    ),
    "disable_padded_drafter_batch": UnreadKey(
        accepted=(True, False),
        meaning="requests of a step may have drafts of different lengths",
        refusal=SWITCH,
    ),
    "disable_by_batch_size": UnreadKey(
        is_count=True,
        meaning="--adapt-speculation stops drafting wherever it does not pay, at any batch size",
        refusal=f"must be {ANY_COUNT}",
    ),
    "rejection_sample_method": UnreadKey(
        accepted=("standard", "strict", "probabilistic"),
        meaning="a draft is accepted if it is the token that the sampler draws at its position",
        refusal="drafts are accepted by exact comparison with the token drawn at their position",
    ),
    "draft_sample_method": UnreadKey(
        accepted=("greedy",),
        meaning="drafts are the draft model's most likely tokens",
        refusal="drafts are the draft model's most likely tokens: leave it out, answers have the same distribution",
    ),
    "enforce_eager": UnreadKey(
        accepted=(False,), refusal="draft and model use CUDA graphs alike: --enforce-eager turns off both"
    ),
    "quantization": UnreadKey(refusal="draft models are read in the format of their checkpoint: leave it out"),
    "kv_cache_dtype": UnreadKey(accepted=("auto",), refusal="--kv-dtype is for the model's cache: leave it out"),
    "moe_backend": UnreadKey(refusal="draft models have no experts: --kernels pins the kernels of the model"),
    "attention_backend": UnreadKey(refusal="--kernels pins implementations: leave it out"),
    "max_model_len": UnreadKey(refusal="drafts are made up to the model's own --max-model-len: leave it out"),
    "revision": UnreadKey(
        refusal="run `firesteel pull NAME --revision REVISION` and give the folder that it prints as model"
    ),
    "code_revision": UnreadKey(refusal="code of a checkpoint is never run: leave it out"),
    "speculative_token_tree": UnreadKey(refusal="drafts are chains, not trees: leave it out"),
    "num_speculative_tokens_per_batch_size": UnreadKey(
        refusal="--adapt-speculation chooses the number in each step: give the largest as num_speculative_tokens"
    ),
}


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def translate_speculation(text: str, settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the settings that the JSON stands for, and a line per key that changes nothing.

    `settings` are those given by our own flags, which win: another kind of drafts among them replaces all of it.
    """
    given = parse_object(text)
    check_keys(given)
    method = find_method(given)
    ours = {
        "speculate": method,
        "draft_model": find_draft_model(given, method),
        "num_speculative_tokens": find_count(given),
    }
    lines = [accept(key, value) for key, value in given.items() if key in UNREAD_KEYS]
    if method == "ngram" and "model" in given:
        lines.append(f"{FLAG} model: n-gram drafts need no draft model")
    if (chosen := settings.get("speculate")) not in (None, method):
        return {}, [f"{FLAG} is not used: --speculate {chosen} was given"]
    return {name: value for name, value in ours.items() if value is not None}, list(filter(None, lines))


def parse_object(text: str) -> dict[str, Any]:
    """Returns the keys that are not null."""
    shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{FLAG} {shown}: is not JSON ({error}); write {FLAG} '{EXAMPLE}'") from error
    if not isinstance(found, dict):
        raise UserError(f"{FLAG} {shown}: must be a JSON object; write {FLAG} '{EXAMPLE}'")
    return {key: value for key, value in found.items() if value is not None}


def check_keys(given: Mapping[str, Any]) -> None:
    known = ["method", "model", "num_speculative_tokens", *UNREAD_KEYS]
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0)[0]
            raise UserError(f"{FLAG}: the key {key!r} is not known here: leave it out, or did you mean {near!r}?")


def find_method(given: Mapping[str, Any]) -> str:
    """Returns the kind of drafts; without `method` the model's name says it, as in vLLM."""
    method, model = given.get("method"), str(given.get("model", "")).lower()
    if method is None:
        method = next((known for known in METHODS if known in model), None)
    if method is None:
        raise UserError(f"{FLAG}: the key 'method' is missing; it must be one of {', '.join(METHODS)}")
    if method in NGRAM_NAMES:
        return NGRAM_NAMES[0]
    if method in METHODS:
        return str(method)
    kind = "mtp" if str(method).endswith("_mtp") else str(method)
    reason = REFUSED_METHODS.get(kind, "it is not known here")
    raise UserError(f"{FLAG}: the method {method!r} is not possible, {reason}; methods: {', '.join(METHODS)}")


def find_draft_model(given: Mapping[str, Any], method: str) -> str | None:
    model = given.get("model")
    if model is None or method == "ngram":
        return None
    if not isinstance(model, str) or not model:
        raise UserError(f"{FLAG}: model = {model!r}: must be a folder or the name of a model, in quotes")
    return model


def find_count(given: Mapping[str, Any]) -> int | None:
    count = given.get("num_speculative_tokens")
    if count is not None and not is_count(count):
        raise UserError(f"{FLAG}: num_speculative_tokens = {count!r}: must be {ANY_COUNT}")
    return count


def accept(key: str, value: Any) -> str:
    """Returns the line for a key that changes nothing; empty if its value asks for what happens anyway."""
    known = UNREAD_KEYS[key]
    if not known.accepts(value):
        only = f"; accepted: {', '.join(json.dumps(choice) for choice in known.accepted)}" if known.accepted else ""
        raise UserError(f"{FLAG}: {key} = {json.dumps(value)}: {known.refusal}{only}")
    return f"{FLAG} {key} {json.dumps(value)}: {known.meaning}" if known.meaning else ""
