"""Predicted decoding speed of several machines that split every layer: vLLM with the plugin, Ray, one GPU per node.

Each node reads its part of the weights and of the cache, and the nodes add their sums after attention and after the
experts of every layer. At one request these messages are small, so their latency counts and not the bandwidth.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from firesteel.measure.roofline.roofline import BF16, NOT_RUN, OpCost, RooflineError, StepCost
from firesteel.model.spec import ModelSpec

# Share of an expert that the slowest rank holds: kernels stream some multiples of 64 of the 2880 values only.
EXPERT_SHARE = {2: 1536 / 2880, 4: 768 / 2880}
WHOLE = ("embedding", "rms_norm", "route")  # ops that every node runs on all of its weights
SUMS_PER_LAYER = 2  # after o and after the experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The network between the nodes."""

    gb_s: float = 25.0  # 200 Gbit/s of the ConnectX-7 ports of a DGX Spark, nominal
    latency_us: float = 41.0  # of one sum over the nodes, payload of a few KB included
    latency_by: str = "8 KB over two DGX Sparks with NCCL, MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks #22"

    def __post_init__(self) -> None:
        if self.gb_s <= 0 or self.latency_us < 0:
            raise RooflineError(
                f"link of {self.gb_s} GB/s and {self.latency_us} us: must be above 0, and at least 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesPrediction:
    nodes: int
    read_ms: float  # of the slowest node, at the assumed share of the bandwidth
    link_ms: float
    predicted_tok_s: float  # of all requests together
    speedup: float  # over one node at the same share
    status: str

    @property
    def step_ms(self) -> float:
        return self.read_ms + self.link_ms

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "step_ms": self.step_ms}


def predict_nodes(
    spec: ModelSpec, cost: StepCost, gb_s: float, share: float, nodes: int, link: Link
) -> NodesPrediction:
    """Predicts a step of `cost` over `nodes` nodes, each with the bandwidth `gb_s` of which it reaches `share`."""
    if nodes not in EXPERT_SHARE:
        raise RooflineError(f"nodes = {nodes}: must be one of {', '.join(map(str, EXPERT_SHARE))}")
    read_s = sum(_held_bytes(op, nodes) for op in cost.ops) / (gb_s * 1e9 * share)
    link_s = find_link_seconds(spec, cost.step.all_tokens, nodes, link)
    return NodesPrediction(
        nodes=nodes,
        read_ms=1e3 * read_s,
        link_ms=1e3 * link_s,
        predicted_tok_s=cost.step.requests / (read_s + link_s),
        speedup=cost.seconds(gb_s) / share / (read_s + link_s),
        status=NOT_RUN,
    )


def find_link_seconds(spec: ModelSpec, tokens: int, nodes: int, link: Link) -> float:
    """Returns the time of all messages of a step: sums of the hidden state, of the embedding, and the logits."""
    sums = SUMS_PER_LAYER * spec.num_layers + 1
    hidden_bytes = (
        2 * (nodes - 1) / nodes * tokens * spec.hidden_size * BF16
    )  # a ring sends almost twice the payload
    logit_bytes = (nodes - 1) / nodes * tokens * spec.vocab_size * BF16
    return (sums + 1) * link.latency_us * 1e-6 + (sums * hidden_bytes + logit_bytes) / (link.gb_s * 1e9)


def nodes_assumptions(nodes: int, link: Link) -> list[str]:
    """Returns the assumptions of the prediction, one line each."""
    return [
        f"{nodes} nodes: each reads its part of qkv, o, lm_head, cache and experts (the slowest "
        f"{EXPERT_SHARE[nodes]:.1%} of each expert), and all of the router and the norms",
        f"{SUMS_PER_LAYER} sums per layer, one of the embedding and one gathering of logits, {link.latency_us:g} "
        f"us each ({link.latency_by}) and their bytes at {link.gb_s:g} GB/s, none of it hidden behind reading",
        "vLLM's scheduling adds nothing to a step; the same arithmetic gives a published stack of 60 tok/s on one "
        "Spark 84 on two, and it reached 76: expect less than predicted",
    ]


def _held_bytes(op: OpCost, nodes: int) -> float:
    """Returns the bytes that the slowest node reads."""
    if op.op in WHOLE:
        return op.bytes
    return op.bytes * (EXPERT_SHARE[nodes] if op.op == "moe_matmul" else 1 / nodes)
