"""The table of levels."""

import pytest

from firesteel.errors import UserError
from firesteel.lab.level import (
    KERNEL_PATH,
    LEVELS,
    MODES,
    SMOKE,
    find_level,
    list_levels,
    parse_levels,
    with_prerequisites,
)
from firesteel.lab.levels.table import RUN


def test_every_level_has_a_function_that_runs_it():
    assert tuple(RUN) == LEVELS


def test_every_mode_starts_with_smoke_and_kernel_path():
    assert list_levels("all") == LEVELS
    assert all(list_levels(mode)[:2] == (SMOKE, KERNEL_PATH) for mode in MODES)


def test_prerequisites_come_before_their_level():
    for level in LEVELS:
        assert all(LEVELS.index(find_level(number)) < LEVELS.index(level) for number in level.prerequisites)


def test_unknown_level_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"no level '7': the levels are 1, 1\.5, 2, 3, 4, 5, 6"):
        find_level("7")


def test_several_levels_run_in_order_each_with_those_it_needs_once():
    numbers = [level.number for level in with_prerequisites(parse_levels("4, 2"))]
    assert numbers == ["1.5", "2", "4"]
    assert with_prerequisites(parse_levels("1")) == (SMOKE,)
    with pytest.raises(UserError, match="no level '7'"):
        parse_levels("2,7")
