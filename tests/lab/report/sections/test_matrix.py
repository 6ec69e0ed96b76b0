"""The section on a matrix names the winner, colours changes against the baseline, and lists what has no rank."""

import itertools

from firesteel.lab.report.document import Fold, Paragraph, Table
from firesteel.lab.report.sections.matrix import matrix
from firesteel.lab.result import parse_result

UNITS = {"tg_tok_s": "tok/s", "ttft_ms": "ms"}


def cell(gates, tg, ttft, **more):
    figures = {"tg_tok_s": tg, "ttft_ms": ttft}
    samples = {name: [value * factor for factor in (0.999, 1.0, 1.001)] for name, value in figures.items()}
    judged = {"verdict": "passed", "unranked": "", "status": "done"}
    return {"gates": gates, "figures": figures, "samples": samples, **judged, **more}


def show(gates, cells):
    content = {"gates": gates, "cells": cells, "figures": UNITS, "words": "all cells done", "all_done": True}
    return matrix(parse_result({"levels": [], "matrix": content}))


def two_by_two(**changes):
    gates = {"kv_dtype": ["auto", "fp8"], "sinks": ["on", "off"]}
    chosen = [dict(zip(gates, values, strict=True)) for values in itertools.product(*gates.values())]
    cells = [
        cell(chosen[0], 100.0, 50.0, rank=3),
        cell(chosen[1], 120.0, 40.0, rank=1),
        cell(chosen[2], 80.0, 60.0, rank=4),
        cell(chosen[3], 101.0, 50.1, rank=2),
    ]
    cells[1] |= changes
    return show(gates, cells)


def test_winner_is_named_with_its_change_from_the_baseline():
    (words, explained) = [part.text for part in two_by_two() if isinstance(part, Paragraph)]
    assert words == "★ Fastest: kv_dtype=auto, sinks=off, 120 tok/s, +20.0 % from the baseline"
    assert explained.startswith("Compared with kv_dtype=auto, sinks=on.")


def test_heat_is_better_for_higher_speed_and_for_shorter_time():
    speed, time = [part for part in two_by_two() if isinstance(part, Table)]
    assert speed.title == "generation, tok/s" and time.title == "TTFT, ms, lower is better"
    for table in (speed, time):
        (_, baseline, best), (_, worst, same) = table.rows
        assert baseline.note == "baseline" and best.text.startswith("★ ") and best.heat > 0
        assert best.note.endswith("better") and worst.heat < 0 and worst.note.endswith("worse")
        assert same.heat == 0 and same.note.endswith("noise")


def test_cell_without_a_rank_is_listed_without_colour_and_never_best():
    parts = two_by_two(unranked="its kernel path is unproven", verdict="unproven", rank=None)
    speed = next(part for part in parts if isinstance(part, Table))
    assert (speed.rows[0][2].heat, speed.rows[0][2].note) == (0.0, "+20.0 %, no rank")
    (fold,) = [part for part in parts if isinstance(part, Fold)]
    assert "its kernel path is unproven" in fold.parts[0].rows[1]
    assert "★" not in speed.rows[0][2].text and speed.rows[1][2].text == "★ 101"


def test_configurations_are_rows_with_verdict_variables_and_a_link_to_their_report():
    names = ["marlin", "cutlass", "eager"]
    cells = [
        cell({"configuration": name}, 50.0 + 9 * number, 50.0, folder=f"cells/{number}", environment={"A": name})
        for number, name in enumerate(names)
    ]
    cells[2] |= {"status": "crashed", "reason": "out of memory", "figures": {}, "unranked": "it crashed"}
    (table,) = [part for part in show({"configuration": names}, cells) if isinstance(part, Table)]
    rows = {row[0].text: row for row in table.rows}
    assert rows["cutlass"][0].link == "cells/1/report.html" and "A=cutlass" in rows["cutlass"]
    crashed = [entry if isinstance(entry, str) else entry.text for entry in rows["eager"]]
    assert "crashed" in crashed and "out of memory\nit crashed" in crashed


def test_best_of_equal_values_is_not_marked():
    cells = [cell({"g": value}, 100.0, time) for value, time in (("a", 50.0), ("b", 50.0), ("c", 60.0))]
    (table,) = [part for part in show({"g": ["a", "b", "c"]}, cells) if isinstance(part, Table)]
    assert not any("★" in entry.text for row in table.rows for entry in row if not isinstance(entry, str))
