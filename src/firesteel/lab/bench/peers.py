"""Published and measured decode speeds of other engines, each with its source.

All are tokens per second of a single request. "measured" marks this project's own runs of that engine on the same
GPU with synthetic weights; the others are quoted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    engine: str
    model: str
    gpu: str  # as in the roofline's table
    tok_s: float
    dense: str  # format of qkv, o and lm_head
    source: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


MEASURED = "measured 2026-11-15, synthetic weights"
README = "christopherowen/spark-vllm-mxfp4-docker, README"
LLAMA = "llama.cpp, benches/dgx-spark, b7941"
EAGLE_120B = "Dogacel/specdrift-gpt-oss-120b-eagle3, baseline"
EAGLE_20B = "Dogacel/specdrift-gpt-oss-20b-eagle3, baseline"
PEERS = (
    Peer(engine="vLLM 0.26.0", model="gpt-oss-120b", gpu="h200", tok_s=234, dense="bf16", source=MEASURED),
    Peer(engine="SGLang 0.5.17", model="gpt-oss-120b", gpu="h200", tok_s=196, dense="bf16", source=MEASURED),
    Peer(engine="llama.cpp (Aug 2026)", model="gpt-oss-120b", gpu="h200", tok_s=244, dense="q8_0", source=MEASURED),
    Peer(engine="vLLM 0.26.0", model="gpt-oss-20b", gpu="h200", tok_s=337, dense="bf16", source=MEASURED),
    Peer(engine="llama.cpp (Aug 2026)", model="gpt-oss-20b", gpu="h200", tok_s=348, dense="q8_0", source=MEASURED),
    Peer(engine="vLLM", model="gpt-oss-120b", gpu="h100", tok_s=196, dense="bf16", source="vllm PR #46423"),
    Peer(engine="SGLang", model="gpt-oss-120b", gpu="h100", tok_s=212, dense="bf16", source=EAGLE_120B),
    Peer(engine="SGLang", model="gpt-oss-20b", gpu="h100", tok_s=305, dense="bf16", source=EAGLE_20B),
    Peer(engine="vLLM fork, MXFP4", model="gpt-oss-120b", gpu="gb10", tok_s=60, dense="mxfp4", source=README),
    Peer(engine="llama.cpp", model="gpt-oss-120b", gpu="gb10", tok_s=58.72, dense="q8_0", source=LLAMA),
    Peer(engine="SGLang", model="gpt-oss-120b", gpu="gb10", tok_s=52, dense="bf16", source="corti.com"),
    Peer(engine="llama.cpp", model="gpt-oss-20b", gpu="gb10", tok_s=83.43, dense="q8_0", source=LLAMA),
    Peer(engine="Ollama", model="gpt-oss-20b", gpu="5090", tok_s=298, dense="q8_0", source="smeltcore.com"),
)


def find_peers(model: str, device: str) -> Sequence[Peer]:
    """Returns the figures for the same model and GPU; names may be those of a checkpoint and of a driver."""
    gpu_words, model_words = device.lower().replace(" ", ""), model.lower()
    return [peer for peer in PEERS if peer.gpu in gpu_words and peer.model in model_words]
