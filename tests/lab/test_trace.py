"""Profiles that torch writes here, and synthetic ones of a GPU and of nsys."""

import gzip
import json
import sqlite3
from contextlib import closing

import pytest
import torch

from firesteel.errors import UserError
from firesteel.lab.trace import Slice, count_kernels, cut, find_outermost, read_timeline

EVENTS = [
    {"cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 5},
    {"cat": "kernel", "name": "void marlin::Marlin", "ts": 30, "dur": 5},
    {"cat": "kernel", "name": "void marlin::Marlin", "ts": 40, "dur": 5},
    {"cat": "gpu_memcpy", "name": "Memcpy DtoH", "ts": 10, "dur": 2},
    {"ph": "M"},
]


@pytest.fixture
def cpu_profile(tmp_path):
    """A profile that this torch writes, of three linear layers on a CPU."""
    path = tmp_path / "trace.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            torch.nn.functional.linear(torch.ones(8, 8), torch.ones(8, 8))
    profiler.export_chrome_trace(str(path))
    return path


@pytest.fixture
def nsys_export(tmp_path):
    """nsys_export("INSERT ..."): a synthetic export with a kernel of 3 us and a copy before it."""
    path = tmp_path / "report.sqlite"
    statements = (
        "CREATE TABLE StringIds (id INTEGER, value TEXT)",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, demangledName INTEGER)",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER)",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER)",
        "INSERT INTO StringIds VALUES (7, 'marlin_gemm')",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (2000, 5000, 7)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1000, 1500)",
    )

    def make(*more):
        with closing(sqlite3.connect(path)) as database, database:
            for statement in (*statements, *more):
                database.execute(statement)
        return path

    return make


def test_ops_of_a_cpu_profile_are_counted_and_the_timeline_has_the_outermost(cpu_profile):
    assert count_kernels(cpu_profile)["aten::linear"] == 3
    names = [piece.name for piece in read_timeline(cpu_profile)]
    assert names.count("aten::linear") == 3 and "aten::mm" not in names


@pytest.mark.parametrize("is_packed", [False, True])
def test_gpu_kernels_replace_the_cpu_ops_that_launched_them(is_packed, tmp_path):
    data = json.dumps({"traceEvents": EVENTS}).encode()
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(data) if is_packed else data)
    assert count_kernels(path) == {"void marlin::Marlin": 2}
    assert [(piece.name, piece.start_us, piece.end_us) for piece in read_timeline(path)] == [
        ("Memcpy DtoH", 10.0, 12.0),
        ("void marlin::Marlin", 30.0, 35.0),
        ("void marlin::Marlin", 40.0, 45.0),
    ]


def test_nsys_export_gives_kernels_and_copies_in_microseconds(nsys_export):
    path = nsys_export()
    assert count_kernels(path) == {"marlin_gemm": 1}
    assert read_timeline(path) == [Slice("memcpy", 1.0, 1.5), Slice("marlin_gemm", 2.0, 5.0)]


@pytest.mark.parametrize("read", [count_kernels, read_timeline])
def test_replays_of_whole_graphs_are_refused(read, nsys_export):
    """By default nsys leaves out the kernels inside a replay. An empty table of replays is accepted, see above."""
    path = nsys_export(
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (10, 20)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (30, 40)",
    )
    with pytest.raises(UserError, match=r"2 replays of CUDA graphs .* --cuda-graph-trace=node"):
        read(path)


def test_window_keeps_what_ran_in_it_and_cuts_what_crosses_its_edges():
    slices = [Slice("a", 5e6, 7e6), Slice("b", 8e6, 9e6), Slice("c", 9.5e6, 12e6)]
    assert cut(slices, 1.0, 4.75) == (
        [Slice("a", 6e6, 7e6), Slice("b", 8e6, 9e6), Slice("c", 9.5e6, 9.75e6)],
        (6e6, 9.75e6),
    )
    assert cut(slices, None, 100.0) == (slices, (5e6, 12e6))


def test_window_in_which_nothing_ran_is_refused():
    with pytest.raises(UserError, match=r"nothing ran between 9 and the end; the profile is 7\.000 s long"):
        cut([Slice("a", 5e6, 12e6)], 9.0, None)


def test_inner_slices_are_dropped():
    outer, inner, later = Slice("a", 0, 10), Slice("b", 2, 4), Slice("c", 10, 12)
    assert find_outermost([inner, later, outer]) == [outer, later]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"nonsense", "not a profile of PyTorch"),
        (b'{"other": 1}', "not a profile of PyTorch"),
        (b'{"traceEvents": []}', "holds no kernel and no op"),
        (b"SQLite format 3\x00broken", "not an export of nsys"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, content, words):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"x\.json .*{words}|x\.json {words}"):
        read_timeline(path)


def test_database_without_kernels_is_refused(tmp_path):
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as database, database:
        database.execute("CREATE TABLE a (b)")
    with pytest.raises(UserError, match="not an export of nsys with CUDA kernels"):
        count_kernels(tmp_path / "x.sqlite")


@pytest.mark.parametrize("read", [count_kernels, read_timeline])
def test_missing_file_is_named(read, tmp_path):
    with pytest.raises(UserError, match="cannot read the profile"):
        read(tmp_path / "gone")
