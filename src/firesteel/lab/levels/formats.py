"""Finds the model that a server holds: its sizes, and the formats of its weights and cache.

Flags, environment and files may all have chosen other formats than the checkpoint's: what nothing states is
unknown, and figures then have neither bytes nor a share of the roofline.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from firesteel.config import resolve
from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.lab.bench.formats import DENSE, KV, LAYERS, MOE, NAMES, SOURCE, parse_formats, shorten_format
from firesteel.lab.bench.public_models import find_public_name
from firesteel.lab.bench.roof import ServedModel
from firesteel.lab.levels.kernel_path import read_lines
from firesteel.lab.path.ledger import ServerLedger
from firesteel.lab.path.slots import LOG, SlotTable
from firesteel.lab.servers.commands import LLAMACPP, SGLANG, VLLM, VLLM_WITH_PLUGIN
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import LabSpec
from firesteel.model.spec import PRESETS, ModelSpec, read_spec

OWN_QUANTIZATION = ("mxfp4", "gpt_oss_mxfp4")  # values of --quantization that keep the checkpoint's format
FORK_LAYERS = re.compile(r"non-default args: .*'mxfp4_layers': '(?P<layers>[^']*)'")
GGUF_TYPE = re.compile(r"llama_model_loader: - type\s+(?P<type>\w+):")
GGUF_VECTORS = ("f32",)  # type of norms and biases in every GGUF file
DENSE_LAYERS = ("qkv", "o", "lm_head")


def find_formats(
    target: Target, spec: LabSpec, ledger: ServerLedger | None, slots: SlotTable | None
) -> Mapping[str, str]:
    """Returns the formats that --formats gives, else those that server, flags and log state; empty if unknown."""
    given = parse_formats(spec.formats)
    stated = dict(ledger.formats) if ledger is not None and ledger.formats else infer_formats(target, spec, slots)
    if not given:
        return stated
    if DENSE in given:
        stated = {name: value for name, value in stated.items() if name != LAYERS}
    said = f", the rest by {stated[SOURCE]}" if SOURCE in stated and set(NAMES) - set(given) else ""
    return {**stated, **given, SOURCE: f"--formats{said}"}


def infer_formats(target: Target, spec: LabSpec, slots: SlotTable | None) -> dict[str, str]:
    """Infers the formats of another engine that the lab started, by its flags and its log."""
    if target.server is None:
        return {}
    log = [] if target.kind == SGLANG else list(read_lines(target.server.log))
    if target.kind == LLAMACPP:
        return read_gguf_types(log) | read_cache_format(slots)
    quantization = spec.engine_flag("quantization")
    is_known_engine = target.kind in (VLLM, VLLM_WITH_PLUGIN, SGLANG)
    if not is_known_engine or any(name not in OWN_QUANTIZATION for name in quantization):
        return {}
    ours = resolve().config
    if target.kind == VLLM_WITH_PLUGIN and (ours.kernels.mxfp4_layers or ours.cache.kv_dtype != "auto"):
        return {}
    layers = find_layers(target.model, spec, slots, log)
    if layers is None:
        return {}
    is_fp8 = any("fp8" in value for value in spec.engine_flag("kv-cache-dtype"))
    cache = {KV: "fp8" if is_fp8 else "bf16"} | read_cache_format(slots)
    return {MOE: "mxfp4", DENSE: "bf16", LAYERS: layers, **cache, SOURCE: "the checkpoint, flags and log"}


def find_layers(model: str, spec: LabSpec, slots: SlotTable | None, log: Iterable[str]) -> str | None:
    """Returns which of qkv, o and lm_head are MXFP4, joined by commas; None if that is unknown."""
    asked = [match["layers"] for line in log if (match := FORK_LAYERS.search(line))]
    named = [*spec.engine_flag("mxfp4-layers"), *asked]
    if named:
        words = [word.strip() for word in named[-1].split(",")]
        return ",".join(layer for layer in DENSE_LAYERS if layer in words or "all" in words)
    sizes = find_sizes(model)
    in_checkpoint = sizes.mxfp4_layers if sizes is not None else ()
    dense = None if slots is None else slots.slots.get(DENSE)
    if dense is not None and not in_checkpoint and any("FP4" in str(line) for line in dense.sightings):
        return None  # some dense layers were quantised while loading
    return ",".join(in_checkpoint)


def read_gguf_types(log: Iterable[str]) -> dict[str, str]:
    """Reads the types of tensors that llama.cpp prints: the experts' is MXFP4, the other is that of the rest."""
    types = {match["type"] for line in log if (match := GGUF_TYPE.search(line))} - set(GGUF_VECTORS)
    rest = {shorten_format(name) for name in types} - {"mxfp4"}
    if "mxfp4" not in types or len(rest) != 1 or not rest <= set(NAMES[DENSE]):
        return {}
    return {MOE: "mxfp4", DENSE: rest.pop(), SOURCE: "the log"}


def read_cache_format(slots: SlotTable | None) -> dict[str, str]:
    """Returns the format of the KV cache that the log showed, if there is one."""
    row = None if slots is None else slots.slots.get(KV)
    if row is None or len(row.values) != 1 or not any(line.source == LOG for line in row.sightings):
        return {}
    name = shorten_format(row.values[0])
    return {KV: name} if name in NAMES[KV] else {}


def find_served(model: str, formats: Mapping[str, str]) -> ServedModel | None:
    """Returns None if sizes or formats are unknown."""
    if KV not in formats or not (LAYERS in formats or DENSE in formats):
        return None
    sizes = find_sizes(model)
    return None if sizes is None else ServedModel.of(sizes, formats)


def find_sizes(model: str) -> ModelSpec | None:
    """Finds the sizes by the checkpoint, or by the name of a public model."""
    try:
        return read_spec(find_checkpoint(model))
    except UserError:
        return PRESETS.get(find_public_name(model))
