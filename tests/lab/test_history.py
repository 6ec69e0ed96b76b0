"""Results of a folder remember the key figures of the runs before them."""

import json

import pytest

from firesteel.errors import UserError
from firesteel.lab.codec import to_json
from firesteel.lab.history import MAX_RUNS, find_history, hash_settings, list_comparable
from firesteel.lab.result import parse_result
from firesteel.lab.spec import LabSpec
from tests.lab import report_parts as parts


def content(*, quick=False, history=(), time="2026-11-18T12:00:00Z", **level):
    return {
        "order": LabSpec(quick=quick).as_dict(),
        "time_utc": time,
        "engine": {"name": "vllm", "kind": "vllm", "version": "0.32.0"},
        "surroundings": {"device": "CPU"},
        "levels": [parts.level("4", bench=parts.bench(), **level)],
        "history": list(history),
    }


def write(folder, result):
    (folder / "result.json").write_text(json.dumps(result))
    return find_history(folder)


def test_new_folder_has_no_history(tmp_path):
    assert find_history(tmp_path) == ()


def test_run_is_remembered_by_the_next_one(tmp_path):
    (run,) = write(tmp_path, content())
    assert (run.time_utc, run.engine) == ("2026-11-18T12:00:00Z", "vllm 0.32.0")
    assert run.figures["tg32"].runs == (400.0, 410.0, 420.0) and set(run.figures) == {"pp2048", "tg32", "TTFT"}


def test_history_goes_on_from_run_to_run(tmp_path):
    earlier = write(tmp_path, content(time="2026-11-17T12:00:00Z"))
    later = content(history=to_json(earlier))
    assert [run.time_utc[:10] for run in write(tmp_path, later)] == ["2026-11-17", "2026-11-18"]


def test_run_that_does_not_count_is_not_remembered(tmp_path):
    assert write(tmp_path, content(valid=False)) == ()


def test_history_is_limited(tmp_path):
    runs = to_json(write(tmp_path, content())) * (MAX_RUNS + 5)
    assert len(write(tmp_path, content(history=runs))) == MAX_RUNS


def test_runs_with_other_settings_are_kept_but_not_compared(tmp_path):
    runs = to_json(write(tmp_path, content(quick=True)))
    result = parse_result(content(history=runs))
    assert len(result.history) == 1 and list_comparable(result) == []
    same = parse_result(content(quick=True, history=runs))
    assert len(list_comparable(same)) == 1


def test_settings_and_device_decide_what_is_compared():
    hashes = {hash_settings(LabSpec(quick=quick), device) for quick in (True, False) for device in ("CPU", "H200")}
    assert len(hashes) == 4 and hash_settings(LabSpec(requests=5), "CPU") in hashes


def test_unreadable_result_is_not_replaced_silently(tmp_path):
    (tmp_path / "result.json").write_text("{broken")
    with pytest.raises(UserError, match="move it, or name another --out"):
        find_history(tmp_path)
