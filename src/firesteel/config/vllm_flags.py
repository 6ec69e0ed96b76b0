"""Flags of vLLM that are understood here, and what each of them means.

Some are other names of our settings. The others ask for what firesteel always does: they are accepted with a line
that says so, and any other value is an error that says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firesteel.config.speculative_config import FLAG as SPECULATIVE_FLAG
from firesteel.config.speculative_config import ONE_GPU, translate_speculation
from firesteel.errors import UserError

SWITCHES = {"enable_prefix_caching": "prefix_caching", "async_scheduling": "run_ahead"}
KV_TYPES = {"auto": "auto", "bf16": "bf16", "bfloat16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8"}
NAMES = {**SWITCHES, "kv_cache_dtype": "kv_dtype"}  # vLLM's name -> ours


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedFlag:
    """A flag that changes nothing here."""

    names: tuple[str, ...]
    accepted: tuple[str, ...]  # values; empty for a flag without one
    meaning: str  # why it changes nothing
    refusal: str = ""  # why no other value is possible

    @property
    def parameter(self) -> str:
        return self.names[0].removeprefix("--").replace("-", "_")


SPECULATIVE_NAMES = (SPECULATIVE_FLAG, "-sc")
ACCEPTED_FLAGS = (
    AcceptedFlag(
        names=("--quantization", "-q"),
        accepted=("mxfp4", "gpt_oss_mxfp4"),
        meaning="experts are always multiplied from their MXFP4 weights",
        refusal="gpt-oss comes in MXFP4, and the kernels read nothing else",
    ),
    AcceptedFlag(names=("--tensor-parallel-size", "-tp"), accepted=("1",), meaning=ONE_GPU, refusal=ONE_GPU),
    AcceptedFlag(names=("--pipeline-parallel-size", "-pp"), accepted=("1",), meaning=ONE_GPU, refusal=ONE_GPU),
    AcceptedFlag(names=("--data-parallel-size", "-dp"), accepted=("1",), meaning=ONE_GPU, refusal=ONE_GPU),
    AcceptedFlag(
        names=("--load-format",),
        accepted=("auto", "safetensors", "fastsafetensors", "instanttensor", "runai_streamer"),
        meaning="safetensors are read by several threads straight into place",
        refusal="a checkpoint is read from safetensors only",
    ),
    AcceptedFlag(
        names=("--dtype",),
        accepted=("auto", "bfloat16"),
        meaning="activations are bf16 on a GPU and float32 on a CPU",
        refusal="gpt-oss was trained in bf16",
    ),
    AcceptedFlag(
        names=("--enable-auto-tool-choice",), accepted=(), meaning="the model may always call the tools it is given"
    ),
    AcceptedFlag(
        names=("--tool-call-parser",),
        accepted=("openai",),
        meaning="tool calls are parsed from Harmony",
        refusal="gpt-oss writes tool calls in Harmony, which `openai` parses",
    ),
    AcceptedFlag(
        names=("--reasoning-parser",),
        accepted=("openai_gptoss", "gptoss"),
        meaning="reasoning is parsed from Harmony",
        refusal="gpt-oss reasons in a channel of Harmony, which `openai_gptoss` parses",
    ),
    AcceptedFlag(names=("--trust-remote-code",), accepted=(), meaning="code of a checkpoint is never run"),
    AcceptedFlag(
        names=("--disable-log-requests",), accepted=(), meaning="prompts are logged only with --log-prompts"
    ),
)


# vLLM's flags of what is missing here -> why, and what to do
REFUSED_FLAGS = {
    "--tool-server": "the model's built-in tools (browser, python) and MCP servers are not run here: offer "
    "functions as tools in requests, and run them in the client",
}


def translate(given: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Adds vLLM's flags to our settings, which win; returns also a line for each flag that changes nothing."""
    translated = dict(settings)
    lines: list[str] = []
    for name, reason in REFUSED_FLAGS.items():
        if (value := given.get(name.removeprefix("--").replace("-", "_"))) is not None:
            raise UserError(f"{name} {value}: {reason}")
    for theirs, ours in SWITCHES.items():
        if theirs in given:
            translated.setdefault(ours, given[theirs])
    if (kv_type := given.get("kv_cache_dtype")) is not None:
        if kv_type not in KV_TYPES:
            raise UserError(f"--kv-cache-dtype {kv_type}: must be one of {', '.join(KV_TYPES)}")
        translated.setdefault("kv_dtype", KV_TYPES[kv_type])
    if (text := given.get("speculative_config")) is not None:
        drafts, lines = translate_speculation(text, settings)
        translated = drafts | translated
    for flag in ACCEPTED_FLAGS:
        if (value := given.get(flag.parameter)) is not None:
            lines.append(_accept(flag, value))
    return translated, lines


def _accept(flag: AcceptedFlag, value: str | bool) -> str:
    name = flag.names[0]
    if isinstance(value, bool):
        return f"{name}: {flag.meaning}"
    if value not in flag.accepted:
        raise UserError(f"{name} {value}: {flag.refusal}; accepted: {', '.join(flag.accepted)}")
    return f"{name} {value}: {flag.meaning}"


def spell_ours(name: str, value: str | None) -> list[tuple[str, str | None]]:
    """Returns vLLM's flag --NAME or --no-NAME and its value as our flags; any other flag stays as it is."""
    if name in SPECULATIVE_NAMES and value is not None:
        drafts, _ = translate_speculation(value, {})
        return [(f"--{ours.replace('_', '-')}", str(chosen)) for ours, chosen in drafts.items()]
    bare = name.removeprefix("--").replace("-", "_")
    no = "no_" if bare.startswith("no_") and bare.removeprefix("no_") in SWITCHES else ""
    ours = NAMES.get(bare.removeprefix(no))
    if ours is None:
        return [(name, value)]
    return [(f"--{no}{ours}".replace("_", "-"), KV_TYPES.get(value, value) if value is not None else None)]
