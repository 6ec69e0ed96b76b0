"""Growth of a gigabyte fails, on the host or on the GPU; first use of reserved memory does not."""

import pytest

from firesteel.lab.level import SMOKE
from firesteel.lab.level_result import Checks
from firesteel.lab.levels.growth import check_growth
from firesteel.lab.memory.footprint import Footprint, MemoryRegion
from firesteel.lab.memory.gpu import OWN, WHOLE
from firesteel.lab.verdict import Verdict

GB = 10**9


def judge(before, after):
    checks = Checks(SMOKE)
    check_growth(checks, before, after, "over 5 repeats")
    [row] = checks.rows
    return row, checks.facts


def footprint(resident, gpu=None, *regions, scope=OWN):
    return Footprint(resident=resident, gpu=gpu, regions=regions, gpu_scope=None if gpu is None else scope)


@pytest.mark.parametrize(
    ("before", "after", "passed"),
    [
        (footprint(GB), footprint(GB + GB // 2), True),
        (footprint(GB), footprint(2 * GB + 1), False),
        (footprint(GB, 3 * GB), footprint(GB, 5 * GB), False),
        (footprint(GB, 3 * GB), footprint(GB, 2 * GB), True),
        (
            footprint(GB, None, MemoryRegion(1, 0, 4 * GB, 0)),
            footprint(4 * GB, None, MemoryRegion(1, 0, 4 * GB, 3 * GB)),
            True,
        ),
    ],
)
def test_a_gigabyte_of_growth_fails(before, after, passed):
    assert judge(before, after)[0].passed == passed


def test_reason_states_growth_and_first_use():
    row, facts = judge(
        footprint(GB, GB, MemoryRegion(1, 0, GB, 0)),
        footprint(2 * GB, GB + 5_000_000, MemoryRegion(1, 0, GB, GB // 2)),
    )
    assert row.words == (
        "memory over 5 repeats: host +500 MB and 500 MB reserved before and now first used, GPU +5 MB"
    )
    assert facts == {
        "growth_bytes": GB // 2,
        "first_used_bytes": GB // 2,
        "gpu_growth_bytes": 5_000_000,
        "gpu_scope": OWN,
    }


def test_growth_of_whole_gpus_says_so_and_different_scopes_are_not_judged():
    row, facts = judge(footprint(GB, GB, scope=WHOLE), footprint(GB, 3 * GB, scope=WHOLE))
    assert not row.passed and row.words.endswith("GPU +2000 MB of whole GPUs, by whomever")
    assert facts["gpu_scope"] == WHOLE
    row, facts = judge(footprint(GB, 0, scope=WHOLE), footprint(GB, 3 * GB))
    assert row.passed and "measured for whole GPUs, by whomever, then for its processes" in row.words
    assert facts["gpu_growth_bytes"] is None


def test_server_that_was_running_already_is_not_judged():
    row, facts = judge(None, None)
    assert row.verdict is Verdict.UNPROVEN and "not visible" in row.words and not facts
