"""A gigabyte more fails, on the host or on the GPU; memory that was reserved before does not."""

import pytest

from firesteel.lab.level import Checks
from firesteel.lab.levels.growth import check_growth
from firesteel.lab.memory.footprint import Footprint, Region
from firesteel.lab.memory.gpu import OWN, WHOLE

GB = 10**9


def judge(before, after):
    checks = Checks()
    check_growth(checks, before, after, "over 5 repeats")
    [row] = checks.rows
    return row, checks.figures


def look(resident, gpu=None, *regions, scope=OWN):
    return Footprint(resident=resident, gpu=gpu, regions=regions, gpu_scope=None if gpu is None else scope)


@pytest.mark.parametrize(
    ("before", "after", "passed"),
    [
        (look(GB), look(GB + GB // 2), True),
        (look(GB), look(2 * GB + 1), False),
        (look(GB, 3 * GB), look(GB, 5 * GB), False),
        (look(GB, 3 * GB), look(GB, 2 * GB), True),
        (look(GB, None, Region(1, 0, 4 * GB, 0)), look(4 * GB, None, Region(1, 0, 4 * GB, 3 * GB)), True),
    ],
)
def test_a_gigabyte_of_growth_fails(before, after, passed):
    assert judge(before, after)[0]["passed"] == passed


def test_words_say_how_much_of_what():
    row, figures = judge(look(GB, GB, Region(1, 0, GB, 0)), look(2 * GB, GB + 5_000_000, Region(1, 0, GB, GB // 2)))
    assert row["words"] == (
        "memory over 5 repeats: host +500 MB and 500 MB reserved before, now first used, GPU +5 MB"
    )
    assert figures == {
        "growth_bytes": GB // 2, "first_used_bytes": GB // 2, "gpu_growth_bytes": 5_000_000, "gpu_scope": OWN,
    }  # fmt: skip


def test_growth_of_whole_gpus_says_so_and_of_two_scopes_is_not_judged():
    row, figures = judge(look(GB, GB, scope=WHOLE), look(GB, 3 * GB, scope=WHOLE))
    assert not row["passed"] and row["words"].endswith("GPU +2000 MB of whole GPUs, by whomever")
    assert figures["gpu_scope"] == WHOLE
    row, figures = judge(look(GB, 0, scope=WHOLE), look(GB, 3 * GB))
    assert row["passed"] and "seen of whole GPUs, by whomever, then of its processes" in row["words"]
    assert figures["gpu_growth_bytes"] is None


def test_server_that_ran_already_is_not_judged():
    row, figures = judge(None, None)
    assert row["passed"] and "not seen" in row["words"] and not figures
