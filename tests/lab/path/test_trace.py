"""Kernel names out of profiles: one that torch makes here, and synthetic ones of a GPU."""

import gzip
import json
import sqlite3
from contextlib import closing

import pytest
import torch

from firesteel.errors import UserError
from firesteel.lab.path.trace import read_kernels
from firesteel.lab.profile.timeline import read_timeline


def test_profile_of_this_torch_on_a_cpu_gives_its_ops(tmp_path):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            torch.ones(8, 8) @ torch.ones(8, 8)
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    assert read_kernels(path)["aten::mm"] == 3


@pytest.mark.parametrize("is_packed", [False, True])
def test_kernels_of_a_gpu_hide_the_ops_that_launched_them(is_packed, tmp_path):
    events = [
        {"name": "aten::mm", "cat": "cpu_op"}, {"name": "void marlin::Marlin", "cat": "kernel"},
        {"name": "void marlin::Marlin", "cat": "kernel"}, {"name": "Memcpy HtoD", "cat": "gpu_memcpy"}, {"ph": "M"},
    ]  # fmt: skip
    data = json.dumps({"traceEvents": events}).encode()
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(data) if is_packed else data)
    assert read_kernels(path) == {"void marlin::Marlin": 2}


def test_export_of_nsys_is_read(tmp_path):
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (demangledName INTEGER, shortName INTEGER)")
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(1, "gemv<int>"), (2, "norm")])
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, 0)", [(1,), (1,), (2,)])
    database.close()
    assert read_kernels(path) == {"gemv<int>": 2, "norm": 1}


@pytest.mark.parametrize("read", [read_kernels, read_timeline])
def test_replays_of_whole_graphs_are_refused_and_the_table_alone_is_not(read, tmp_path):
    """Synthetic, with the tables of nsys's export: at its default the kernels inside a replay are missing."""
    path = tmp_path / "report.sqlite"
    kernel = "CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, demangledName INTEGER)"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        database.execute(f"CREATE TABLE {kernel}")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER)")
        database.execute("INSERT INTO StringIds VALUES (1, 'prompt_gemm')")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 5, 1)")
    assert len(read(path)) == 1
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?, ?)", [(10, 20), (30, 40)])
    with pytest.raises(UserError, match=r"2 replays of CUDA graphs .* --cuda-graph-trace=node"):
        read(path)


def test_other_files_are_refused_by_name(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UserError, match=r"x\.json is no profile of PyTorch"):
        read_kernels(tmp_path / "x.json")
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        database.execute("CREATE TABLE a (b)")
    database.close()
    with pytest.raises(UserError, match="no export of nsys"):
        read_kernels(tmp_path / "x.sqlite")
    with pytest.raises(UserError, match="cannot read the profile"):
        read_kernels(tmp_path / "nothing")
