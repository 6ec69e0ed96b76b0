"""The fused ops of a decoding step, bound to implementations for one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from firesteel.device import DeviceSpec
from firesteel.errors import UserError
from firesteel.kernels.decode.attention_operands import DecodeAttentionOperands
from firesteel.kernels.decode.experts import DecodeExpertsOperands
from firesteel.kernels.decode.fc1 import DecodeFc1Operands
from firesteel.kernels.decode.fc2 import DecodeFc2Operands
from firesteel.kernels.decode.lm_head import DecodeLmHeadOperands
from firesteel.kernels.decode.o import DecodeOOperands
from firesteel.kernels.decode.qkv_operands import DecodeQkvOperands
from firesteel.kernels.decode.router import DecodeRouterOperands
from firesteel.kernels.decode.sample import DecodeSampleOperands
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.chosen import Chosen
from firesteel.kernels.op.requirement import Requirement
from firesteel.kernels.proof.prove import check_here
from firesteel.kernels.registry import DECODE_OPS, find_op
from firesteel.model.precision import DENSE_LAYERS

NAMES = tuple(op.name for op in DECODE_OPS)


class DecodeError(UserError):
    """A step that the decode ops cannot compute."""


class DecodeOps(NamedTuple):
    """Decode ops, keyed by timing group."""

    qkv: Callable[[DecodeQkvOperands], tuple[Tensor, ...]]
    attention: Callable[[DecodeAttentionOperands], Tensor]
    o: Callable[[DecodeOOperands], Tensor]
    router: Callable[[DecodeRouterOperands], Tensor]
    experts: Callable[[DecodeExpertsOperands], Tensor]  # or, if their rows differ in length, the next two
    fc1: Callable[[DecodeFc1Operands], Tensor]
    fc2: Callable[[DecodeFc2Operands], Tensor]
    lm_head: Callable[[DecodeLmHeadOperands], tuple[Tensor, Tensor]]
    sample: Callable[[DecodeSampleOperands], tuple[Tensor, ...]]

    @classmethod
    def choose(
        cls,
        device: DeviceSpec,
        ledger: Ledger,
        *,
        asked: Mapping[str, str] = MappingProxyType({}),
        required: Mapping[str, Requirement] = MappingProxyType({}),
        activation: str = "bf16",
        mxfp4_layers: Sequence[str] | None = None,
    ) -> DecodeOps:
        """Chooses implementations as `Kernels` does for the other ops; both mappings are keyed by op name.

        A required verdict is that of every kernel of the op for the activation, or with `mxfp4_layers`, the dense
        layers held in MXFP4, of those that a model so held launches.
        """
        for name in (*asked, *required):
            find_op(name, DECODE_OPS)
        chosen = {
            op.name: op.choose(device, asked.get(op.name), ledger, required.get(op.name), activation)
            for op in DECODE_OPS
        }
        for name, requirement in required.items():
            if requirement.verdict is not None:
                check_here(find_op(name), device, requirement, activation, _name_weight(name, mxfp4_layers))
        return cls(**{group: chosen[f"decode_{group}"] for group in GROUPS})

    def table(self) -> list[tuple[str, str]]:
        """Returns (op, implementations that may run, best first) for each op."""
        chosen = [op for op in self if isinstance(op, Chosen)]
        return [(choice.op.name, ", ".join(candidate.name for candidate in choice.candidates)) for choice in chosen]


GROUPS = DecodeOps._fields


def _name_weight(op: str, mxfp4_layers: Sequence[str] | None) -> str | None:
    """Returns the weight's name in the variants of device code."""
    layer = op.removeprefix("decode_")
    if mxfp4_layers is None or layer not in DENSE_LAYERS:
        return None
    return "mxfp4-weight" if layer in mxfp4_layers else "bf16-weight"


def split_choices(text: str) -> tuple[str, str]:
    """Splits "OP=...,OP=..." into the choices of other ops and those of decode ops."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    is_ours = [part.partition("=")[0] in NAMES for part in parts]
    ours = [part for part, yes in zip(parts, is_ours, strict=True) if yes]
    others = [part for part, yes in zip(parts, is_ours, strict=True) if not yes]
    return ",".join(others), ",".join(ours)
