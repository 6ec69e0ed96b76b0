import pytest

from firesteel.lab.path.ranks import awaits_ranks, judge_ranks

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
