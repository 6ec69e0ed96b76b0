"""The table of mixed requests: cold and warm vLLM, best days, and records of other requests."""

from dataclasses import replace

import pytest

from tables import mixed, steps
from tables.mixed import COLD, OURS, WARM, MixedFigures


def figures(engine, rate, first=10.0, gap=5.0, workload="closed loop, 8 in flight"):
    return MixedFigures(engine=engine, workload=workload, output_tok_s=rate, first_token_ms=first, gap_ms=gap)


def cells(table, workload, label):
    row = next(line for line in table.splitlines() if line.startswith(f"| {workload} | {label} |"))
    return [cell.strip() for cell in row.split("|")[3:-1]]


def test_each_figure_of_an_engine_is_that_of_its_best_day():
    table = mixed.mixed_table([figures(COLD, 100, 30, 9), figures(COLD, 90, 20, 8), figures(OURS, 500)])
    assert cells(table, "closed loop, 8 in flight", "output tok/s") == ["500", "100", ""]
    assert cells(table, "closed loop, 8 in flight", "first token ms") == ["10.0", "20.0", ""]
    assert cells(table, "closed loop, 8 in flight", "gap p99 ms") == ["5.0", "8.0", ""]
    assert table.splitlines()[-1].startswith("|")


def test_rates_of_chats_and_arrivals_are_left_out():
    chat = figures(OURS, 300, workload="chat turn, 20 new tokens after 1024 cached")
    table = mixed.mixed_table([chat, figures(OURS, 300, workload="2 requests per second")])
    assert "output tok/s" not in table and table.count("gap p99 ms") == 1 and table.count("first token ms") == 2


def test_first_records_of_vllm_are_cold_and_of_the_requests_that_are_sent_now():
    first = list(mixed._read_first(mixed.PEERS))
    assert {read.engine for read in first} == {COLD} and len(first) == 9 + 5
    best = max(read.output_tok_s for read in first if read.workload == "closed loop, 32 in flight")
    assert best == 401.6


def save(folder, engine, number, rate, version=mixed.VERSION):
    """Saves a record as `tools/vllm_workload.py` does, with the surroundings of an existing one."""
    facts = {
        "engine": engine,
        "vllm": version,
        "pass": number,
        "kind": "closed",
        "in_flight": 8,
        "output_tok_s": rate,
        "first_token_ms": {"p50": 1.0},
        "gap_ms": None,
    }
    like = steps.read_workload()[0]
    replace(like, name=f"{engine} V1 {version} workload closed pass {number}", parameters=facts).save(folder)


def test_first_pass_is_cold_and_the_last_one_warm(tmp_path):
    for number, rate in ((1, 100.0), (2, 900.0), (3, 910.0)):
        save(tmp_path, "vllm", number, rate)
    save(tmp_path, "vllm+firesteel", 1, 2000.0)
    save(tmp_path, "vllm", 4, 3000.0, version="0.32.0")
    read = {(figures.engine, figures.output_tok_s) for figures in mixed._read_passes(tmp_path)}
    assert read == {(COLD, 100.0), (WARM, 910.0)}


@pytest.mark.parametrize("is_old", [True, False])
def test_records_of_other_requests_are_marked(is_old, tmp_path):
    record = next(record for record in steps.read_workload() if record.parameters["kind"] == "closed")
    named = {} if is_old else {"request_digest": "0"}
    record = replace(record, parameters={**record.parameters, **named})
    assert ("of requests that an earlier revision drew" in steps.workload_table([record])) is is_old
    record.save(tmp_path)
    assert len(list(mixed._read_ours(tmp_path))) == (not is_old)


def test_empty_column_says_why():
    assert mixed.mixed_table([figures(COLD, 1)]).endswith(mixed.OLD_NOTE)
