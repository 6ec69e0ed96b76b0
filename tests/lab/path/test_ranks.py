import pytest

from firesteel.lab.path.ranks import awaits_ranks, judge_ranks, list_rank_rows

LOADED = "INFO firesteel: read the weights in 1.0 s"


def rank(number, count):
    return (
        f"(Worker pid=3) INFO firesteel: rank {number} of {count}: gpt-oss plugin 0.1.0 in vLLM 0.28.0; rope=cuda"
    )


@pytest.mark.parametrize(
    ("log", "awaits", "faults"),
    [
        (["hello"], False, 0),
        ([LOADED], True, 0),
        ([LOADED, rank(0, 1)], False, 0),
        ([LOADED, rank(0, 2)], True, 1),
        ([LOADED, rank(1, 2), rank(0, 2)], False, 0),
        ([rank(0, 2)], False, 1),
    ],
)
def test_lines_of_ranks_are_awaited_while_some_are_missing(log, awaits, faults):
    assert awaits_ranks(log) == awaits
    assert len(judge_ranks(log)) == faults


def test_missing_ranks_are_named_with_the_cure():
    """A node without firesteel would run vLLM's own gpt-oss as one of the ranks."""
    [fault] = judge_ranks([rank(0, 4), rank(3, 4)])
    assert "did not report rank 1, 2 of 4" in fault and "RAY_DEDUP_LOGS=0" in fault


def test_rows_of_ranks_are_lines_of_a_ledger_and_equal_ones_count_once():
    ran = "linear=triton:gemm mxfp8[bf16+none], rope=cuda, sinks=on"
    line = f"firesteel: rank {{}} of 2: gpt-oss plugin 0.1 in vLLM 0.32.0; {ran}"
    rows = list_rank_rows([line.format(0), "hello; moe=marlin", line.format(1)])
    assert rows == ["linear=triton:gemm mxfp8 @bf16", "rope=cuda", "sinks=on"]
