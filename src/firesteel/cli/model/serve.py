"""The verb `serve`: loads a model and serves the OpenAI API until it is stopped."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from firesteel.cli.app import app, with_options, with_settings
from firesteel.cli.help_page import FURTHER
from firesteel.cli.options import check_model
from firesteel.config.vllm_flags import ACCEPTED_FLAGS, KV_TYPES, REFUSED_FLAGS, SPECULATIVE_NAMES, translate
from firesteel.errors import UserError


def vllm_options() -> dict[str, Any]:
    """Returns annotated options for vLLM's flags, by parameter."""
    options: dict[str, Any] = {
        "enable_prefix_caching": _vllm_option(
            bool, "same as --prefix-caching", "--enable-prefix-caching/--no-enable-prefix-caching"
        ),
        "async_scheduling": _vllm_option(bool, "same as --run-ahead", "--async-scheduling/--no-async-scheduling"),
        "kv_cache_dtype": _vllm_option(str, f"same as --kv-dtype: {', '.join(KV_TYPES)}", "--kv-cache-dtype"),
        "speculative_config": _vllm_option(
            str,
            "same as --speculate, --draft-model and --num-speculative-tokens, as JSON with method, model and "
            "num_speculative_tokens",
            *SPECULATIVE_NAMES,
        ),
    }
    for flag in ACCEPTED_FLAGS:
        accepted = f"accepted: {', '.join(flag.accepted)}" if flag.accepted else "accepted"
        kind = str if flag.accepted else bool
        options[flag.parameter] = _vllm_option(kind, f"{accepted}; {flag.meaning}", *flag.names)
    for name, reason in REFUSED_FLAGS.items():
        options[name.removeprefix("--").replace("-", "_")] = _vllm_option(str, f"refused: {reason}", name)
    return options


def _vllm_option(kind: type, help: str, *names: str) -> Any:
    return Annotated[kind | None, typer.Option(*names, help=help, rich_help_panel=f"{FURTHER}flags: vLLM")]


@app.command()
@partial(with_options, parameter="vllm_flags", options=vllm_options())
@partial(with_settings, is_server=True)
def serve(
    settings: dict[str, Any],
    vllm_flags: dict[str, Any],
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="same as --model (default: kindling, built in)")
    ] = None,
) -> None:
    """Serve a model over the OpenAI API. Accepts the flags of a vLLM command line for gpt-oss."""
    settings, lines = translate(vllm_flags, settings)
    if checkpoint is not None and settings.setdefault("model", checkpoint) != checkpoint:
        raise UserError(f"two models given: {checkpoint} and --model {settings['model']}; give one of them")
    for line in lines:
        typer.echo(line, err=True)
    check_model(settings)
    from firesteel.cli.model.serving import serve_model

    serve_model(settings)
