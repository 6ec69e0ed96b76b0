"""Flags that a user of vLLM pastes: what each means here; knows no server.

Some are other names of our settings. The others ask for what firesteel does anyway: they are accepted with a line
that says so, and any other value is an error that says why.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from firesteel.config.spellings import KV_TYPES, SWITCHES
from firesteel.errors import UserError

PANEL = "flags of vLLM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Familiar:
    """A flag that changes nothing."""

    names: tuple[str, ...]
    accepted: tuple[str, ...]  # values; empty for a switch
    means: str  # why it changes nothing
    refused: str = ""  # why there is no other value

    @property
    def parameter(self) -> str:
        return self.names[0].removeprefix("--").partition("/")[0].replace("-", "_")


ONE_GPU = "firesteel runs on one GPU"
FAMILIAR = (
    Familiar(
        names=("--quantization", "-q"),
        accepted=("mxfp4", "gpt_oss_mxfp4"),
        means="experts are always multiplied from their MXFP4 weights",
        refused="gpt-oss comes in MXFP4, and that is what the kernels read",
    ),
    Familiar(
        names=("--tensor-parallel-size", "-tp"), accepted=("1",), means="one GPU is what is used", refused=ONE_GPU
    ),
    Familiar(
        names=("--pipeline-parallel-size", "-pp"), accepted=("1",), means="one GPU is what is used", refused=ONE_GPU
    ),
    Familiar(
        names=("--data-parallel-size", "-dp"), accepted=("1",), means="one GPU is what is used", refused=ONE_GPU
    ),
    Familiar(
        names=("--load-format",),
        accepted=("auto", "safetensors", "fastsafetensors", "instanttensor", "runai_streamer"),
        means="safetensors are read by many threads straight into place",
        refused="a checkpoint is read from safetensors only",
    ),
    Familiar(
        names=("--dtype",),
        accepted=("auto", "bfloat16"),
        means="activations are bf16 on a GPU and float32 on a CPU",
        refused="gpt-oss was trained in bf16",
    ),
    Familiar(
        names=("--enable-auto-tool-choice",), accepted=(), means="the model may always call the tools it is given"
    ),
    Familiar(
        names=("--tool-call-parser",),
        accepted=("openai",),
        means="calls are read from Harmony",
        refused="gpt-oss writes calls in Harmony, which `openai` reads",
    ),
    Familiar(
        names=("--reasoning-parser",),
        accepted=("openai_gptoss", "gptoss"),
        means="reasoning is read from Harmony",
        refused="gpt-oss reasons in a channel of Harmony, which `openai_gptoss` reads",
    ),
    Familiar(names=("--trust-remote-code",), accepted=(), means="no code of a checkpoint is ever run"),
    Familiar(
        names=("--disable-log-requests",), accepted=(), means="prompts are not logged unless --log-prompts asks"
    ),
)


def with_familiar(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command vLLM's flags; it receives those given as `familiar`."""
    own = [one for one in inspect.signature(command).parameters.values() if one.name != "familiar"]
    flags = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _declared().items()
    ]

    def run(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in _declared()}
        command(**given, familiar={name: value for name, value in chosen.items() if value is not None})

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    hints = {one.name: one.annotation for one in own}
    run.__annotations__ = {**hints, **_declared()}
    return run


def _declared() -> dict[str, Any]:
    found: dict[str, Any] = {
        "enable_prefix_caching": _option(
            bool, "--enable-prefix-caching/--no-enable-prefix-caching", "as --prefix-caching"
        ),
        "async_scheduling": _option(bool, "--async-scheduling/--no-async-scheduling", "as --run-ahead"),
        "kv_cache_dtype": _option(str, "--kv-cache-dtype", f"as --kv-dtype: {', '.join(KV_TYPES)}"),
    }
    for one in FAMILIAR:
        text = f"accepted{': ' if one.accepted else ''}{', '.join(one.accepted)}; {one.means}"
        found[one.parameter] = _option(str if one.accepted else bool, *one.names, text)
    return found


def _option(kind: type, *names_and_help: str) -> Any:
    *names, text = names_and_help
    return Annotated[kind | None, typer.Option(*names, help=text, rich_help_panel=PANEL)]


def translate(familiar: Mapping[str, Any], knobs: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Our settings, and a line for each flag that changes nothing."""
    settings, lines = dict(knobs), []
    for theirs, ours in SWITCHES.items():
        if theirs in familiar:
            settings.setdefault(ours, familiar[theirs])
    if (stored := familiar.get("kv_cache_dtype")) is not None:
        if stored not in KV_TYPES:
            raise UserError(
                f"--kv-cache-dtype {stored}: keys and values are stored as one of {', '.join(KV_TYPES)}"
            )
        settings.setdefault("kv_dtype", KV_TYPES[stored])
    for one in FAMILIAR:
        if (value := familiar.get(one.parameter)) is not None:
            lines.append(_accept(one, value))
    return settings, lines


def _accept(one: Familiar, value: str | bool) -> str:
    flag = one.names[0].partition("/")[0]
    if isinstance(value, bool):
        return f"{flag}: {one.means}"
    if value not in one.accepted:
        raise UserError(f"{flag} {value}: {one.refused}; accepted: {', '.join(one.accepted)}")
    return f"{flag} {value}: {one.means}"
