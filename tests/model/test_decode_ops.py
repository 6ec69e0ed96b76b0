"""The decode ops as chosen for a device."""

import pytest

from firesteel.device import find_device
from firesteel.errors import KernelError
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.requirement import Requirement, parse_requirements
from firesteel.kernels.registry import DECODE_OPS
from firesteel.model import decode_ops
from firesteel.model.decode_ops import GROUPS, NAMES, DecodeOps, split_choices

CPU = find_device("cpu")


def test_each_group_is_the_op_of_its_name():
    ops = DecodeOps.choose(CPU, Ledger())
    assert {group: chosen.op for group, chosen in ops._asdict().items()} == {
        op.name.removeprefix("decode_"): op for op in DECODE_OPS
    }
    assert ops.table() == [(f"decode_{group}", "reference") for group in GROUPS]


def test_all_calls_go_to_the_given_ledger():
    ledger = Ledger()
    assert all(chosen.ledger is ledger for chosen in DecodeOps.choose(CPU, ledger))


def test_pin_or_requirement_that_cannot_be_met_is_an_error():
    with pytest.raises(KernelError, match=r"decode_o=cuda .*here there is reference"):
        DecodeOps.choose(CPU, Ledger(), asked={"decode_o": "cuda"})
    with pytest.raises(KernelError, match=r"decode_o=cuda is required"):
        DecodeOps.choose(CPU, Ledger(), required=parse_requirements("decode_o=cuda"))
    with pytest.raises(KernelError, match="there is no op 'linear'"):
        DecodeOps.choose(CPU, Ledger(), asked={"linear": "reference"})


def test_pins_and_requirements_are_kept():
    asked, required = dict.fromkeys(NAMES, "reference"), parse_requirements("decode_qkv=reference")
    ops = DecodeOps.choose(CPU, Ledger(), asked=asked, required=required)
    assert ops.qkv.required == required["decode_qkv"] and ops.o.required is None


@pytest.mark.parametrize(
    ("layers", "weights"),
    [
        (None, {"decode_qkv": None, "decode_fc1": None}),
        ((), {"decode_qkv": "bf16-weight", "decode_fc1": None}),
        (("qkv",), {"decode_qkv": "mxfp4-weight", "decode_fc1": None, "decode_lm_head": "bf16-weight"}),
    ],
)
def test_required_verdict_is_checked_for_the_weight_format_of_the_model(monkeypatch, layers, weights):
    asked = {}
    monkeypatch.setattr(decode_ops, "check_here", lambda op, *others: asked.update({op.name: others[-1]}))
    required = {name: Requirement(name, "reference", "int8") for name in weights}
    DecodeOps.choose(CPU, Ledger(), required=required, mxfp4_layers=layers)
    assert asked == weights


@pytest.mark.parametrize(
    ("text", "others", "ours"),
    [
        ("", "", ""),
        ("linear=triton", "linear=triton", ""),
        ("decode_o=cuda", "", "decode_o=cuda"),
        (
            "moe=triton@fp8, decode_o=cuda ,route=a,decode_qkv=b",
            "moe=triton@fp8,route=a",
            "decode_o=cuda,decode_qkv=b",
        ),
        ("decode_nothing=x", "decode_nothing=x", ""),
    ],
)
def test_choices_are_split_by_op(text, others, ours):
    assert split_choices(text) == (others, ours)
