"""A gigabyte more fails, on the host or on the GPU; memory that was reserved before does not."""

import pytest

from firesteel.lab.footprint import Footprint, Region
from firesteel.lab.growth import check_growth
from firesteel.lab.levels import Checks

GB = 10**9


def judge(before, after):
    checks = Checks()
    check_growth(checks, before, after, "over 5 repeats")
    [row] = checks.rows
    return row, checks.figures


def look(resident, gpu=None, *regions):
    return Footprint(resident=resident, gpu=gpu, regions=regions)


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
    assert figures == {"growth_bytes": GB // 2, "first_used_bytes": GB // 2, "gpu_growth_bytes": 5_000_000}


def test_server_that_ran_already_is_not_judged():
    row, figures = judge(None, None)
    assert row["passed"] and "not seen" in row["words"] and not figures
