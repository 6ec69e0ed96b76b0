"""What vLLM calls settings of ours, and settings that are gone; knows no command line."""

from __future__ import annotations

SWITCHES = {"enable_prefix_caching": "prefix_caching", "async_scheduling": "run_ahead"}
KV_TYPES = {
    "auto": "auto",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
}  # of pages
# Accepted with a warning for one version: what stands in their place.
RETIRED = {"capture_at_start": "prepare, which serve does unless told otherwise, makes all steps beforehand"}
NAMES = {**SWITCHES, "kv_cache_dtype": "kv_dtype"}


def spell_ours(name: str, value: str | None) -> tuple[str, str | None]:
    """A flag --NAME or --no-NAME of vLLM's, and its value, as ours; what is no name of theirs stays."""
    bare = name.removeprefix("--").replace("-", "_")
    no = "no_" if bare.startswith("no_") and bare.removeprefix("no_") in SWITCHES else ""
    ours = NAMES.get(bare.removeprefix(no))
    if ours is None:
        return name, value
    return f"--{no}{ours}".replace("_", "-"), KV_TYPES.get(value, value) if value is not None else None
