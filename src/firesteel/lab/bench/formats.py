"""Formats of a served model's weights and cache, under the names of the roofline."""

from __future__ import annotations

from firesteel.errors import UserError
from firesteel.measure.roofline.roofline import KV_BYTES, ROW_BYTES

MOE, DENSE, KV = "moe", "dense", "kv"
LAYERS = "mxfp4_layers"  # those of qkv, o and lm_head that are MXFP4; the rest is DENSE
SOURCE = "source"  # who says so
NAMES = {MOE: tuple(ROW_BYTES), DENSE: tuple(ROW_BYTES), KV: tuple(KV_BYTES)}
# As torch, GGUF and the flags of other engines write them. All formats of 16 bits cost the same.
OTHER_NAMES = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "fp16": "bf16",
    "f16": "bf16",
    "float32": "fp32",
    "f32": "fp32",
}


def shorten_format(name: str) -> str:
    """Returns the roofline's name of a format, or the name itself if it has another one."""
    return "fp8" if name.startswith(("float8", "fp8")) else OTHER_NAMES.get(name, name)


def parse_formats(text: str) -> dict[str, str]:
    """Parses --formats, such as "moe=mxfp4,dense=q8_0,kv=fp8"; parts may be missing."""
    formats: dict[str, str] = {}
    for word in filter(None, text.split(",")):
        part, _, name = (piece.strip() for piece in word.partition("="))
        if part not in NAMES:
            raise UserError(f"--formats {word}: write PART=FORMAT; the parts are {', '.join(NAMES)}")
        if shorten_format(name) not in NAMES[part]:
            raise UserError(f"--formats {word}: {part} must be one of {', '.join(NAMES[part])}")
        formats[part] = shorten_format(name)
    return formats
