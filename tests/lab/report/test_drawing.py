"""Scales have few round levels, and texts of a drawing do not cover each other."""

import itertools
import re

import pytest

from firesteel.lab.report.drawing import CHARACTER, Scale, nice_levels, overlap, place_labels, select_ticks


@pytest.mark.parametrize("highest", [0.003, 0.9, 7, 99, 100, 4645, 1e6])
def test_levels_are_few_and_cover_zero_to_the_highest(highest):
    levels = nice_levels(highest)
    assert levels[0] == 0 and levels[-2] < highest * 1.0001 <= levels[-1] * 1.001
    assert 2 <= len(levels) <= 6


def test_ticks_keep_both_ends_and_do_not_overlap():
    ticks = [0.0, 512.0, 1024.0, 4096.0, 32256.0, 32768.0]
    scale = Scale(0, 32768, 44, 366)
    kept = select_ticks(ticks, scale, str)
    assert kept[0] == 0.0 and kept[-1] == 32768.0 and 32256.0 not in kept
    gaps = [scale(after) - scale(before) for before, after in itertools.pairwise(kept)]
    assert min(gaps) > CHARACTER * 5


def test_labels_of_close_points_do_not_overlap():
    points = [(200.0, 100.0), (203.0, 101.0), (206.0, 102.0), (300.0, 50.0)]
    names = ["1", "2", "4", "8"]
    drawn = re.findall(r'x="([\d.]+)" y="([\d.]+)">(\d+)<', place_labels(points, names))
    boxes = [(float(x), float(y) - 10, float(x) + CHARACTER * len(name), float(y) + 2) for x, y, name in drawn]
    assert len(boxes) >= 3 and drawn[-1][2] == "8"
    assert not any(overlap(first, second) for first, second in itertools.combinations(boxes, 2))
