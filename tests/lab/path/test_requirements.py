"""Requirements of --require, held against a ledger."""

import pytest

from firesteel.lab.path.ledger import parse_ledger
from firesteel.lab.path.requirements import judge_requirements, list_references
from tests.lab.path.evidence_lines import ledger

ROWS = (
    ("moe_matmul", "triton:gemm", "bf16"),
    ("moe_matmul", "triton:gemv", "bf16"),
    ("linear", "triton", "bf16"),
    ("rms_norm", "reference", ""),
)


@pytest.mark.parametrize(
    ("require", "faults"),
    [
        ("moe=triton", []),
        ("moe=triton:gemm", ["moe_matmul=triton:gemm was required, but triton:gemv ran"]),
        ("attention=triton", ["attention=triton was required, but attention did not run"]),
    ],
)
def test_requirement_applies_to_every_call_of_its_op(require, faults):
    assert judge_requirements(require, parse_ledger(ledger(*ROWS))) == faults


def test_required_verdict_is_compared_with_the_machine_code():
    def find(require, *verdicts):
        return judge_requirements(require, parse_ledger(ledger(("moe_matmul", "triton:gemm", "mxfp8", *verdicts))))

    are = "moe_matmul=triton@native-fp4 was required, but the matrix instructions of its machine code are"
    assert find("moe=triton@fp8", "none", "fp8", None) == []
    assert find("moe=triton@none", "none") == []
    assert find("moe=triton@native-fp4", "none", "fp8", None, "bf16") == [f"{are} bf16, fp8"]
    assert find("moe=triton@native-fp4", "none") == [f"{are} none"]
    assert find("moe=triton@native-fp4") == [f"{are} none"]


def test_ops_in_plain_torch_are_listed():
    assert list_references(parse_ledger(ledger(*ROWS))) == ["rms_norm"]
