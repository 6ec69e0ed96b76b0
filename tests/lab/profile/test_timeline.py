"""Profiles of PyTorch and nsys become slices; those made here are real (PyTorch) or synthetic (nsys)."""

import gzip
import json
import sqlite3

import pytest
import torch

from firesteel.errors import UserError
from firesteel.lab.profile.timeline import Slice, outermost, read_timeline


def test_a_real_profile_of_cpu_ops_counts_outer_ops_once(tmp_path):
    path = tmp_path / "trace.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            torch.nn.functional.linear(torch.ones(8, 8), torch.ones(8, 8))
    profiler.export_chrome_trace(str(path))
    names = [one.name for one in read_timeline(path)]
    assert names.count("aten::linear") == 3 and "aten::mm" not in names


def test_kernels_hide_cpu_ops_and_gzip_is_read(tmp_path):
    events = [
        {"cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 5},
        {"cat": "kernel", "name": "moe_kernel", "ts": 30, "dur": 5},
        {"cat": "gpu_memcpy", "name": "Memcpy DtoH", "ts": 10, "dur": 2},
    ]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    assert read_timeline(path) == [Slice("Memcpy DtoH", 10.0, 12.0), Slice("moe_kernel", 30.0, 35.0)]


def test_an_export_of_nsys_is_read(tmp_path):
    path = tmp_path / "trace.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, demangledName INTEGER)"
        )
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER)")
        database.execute("INSERT INTO StringIds VALUES (7, 'marlin_gemm')")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (2000, 5000, 7)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1000, 1500)")
    database.close()
    assert read_timeline(path) == [Slice("memcpy", 1.0, 1.5), Slice("marlin_gemm", 2.0, 5.0)]


def test_inner_slices_are_dropped():
    outer, inner, later = Slice("a", 0, 10), Slice("b", 2, 4), Slice("c", 10, 12)
    assert outermost([inner, later, outer]) == [outer, later]


@pytest.mark.parametrize(
    "content", [b"nonsense", b'{"traceEvents": []}', b'{"other": 1}', b"SQLite format 3\x00broken"]
)
def test_what_is_no_profile_is_said(tmp_path, content):
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"no profile|no kernel|no export"):
        read_timeline(path)
    with pytest.raises(UserError, match="cannot read"):
        read_timeline(tmp_path / "gone")
