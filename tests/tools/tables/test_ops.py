"""Tables of ops and of kernel libraries."""

from firesteel.kernels.ops.moe_matmul import moe_matmul
from tables import ops
from tables.records import ROOT

KERNELS_PAGE = ROOT / "docs" / "kernels.md"


def test_fastest_implementation_is_shown():
    records = ops.read_ops()
    fastest = min(
        record.median
        for record in records
        if record.parameters["op"] == "moe_matmul" and record.parameters["m"] == 64
    )
    assert f"{fastest * 1e6:,.0f} us" in ops.ops_table(records)


def test_library_is_compared_with_our_fastest_implementation():
    records = ops.read_libraries()
    ours = [record for record in records if record.kernels]
    sizes = sorted({record.parameters["m"] for record in ours})
    assert len(sizes) == 11 and {record.parameters["m"] for record in records} == set(sizes)
    rows = ops.library_table(records).splitlines()[2:]
    for m, row in zip(sizes, rows, strict=True):
        cells = row.strip("| ").split(" | ")
        fastest = min((record for record in ours if record.parameters["m"] == m), key=lambda record: record.median)
        assert cells[:2] == [str(m), f"`{fastest.parameters['implementation']}`"]
        us = [float(cell.replace(",", "")) for cell in cells[2:6]]
        assert abs(us[0] - fastest.median * 1e6) < 0.06
        shares = [us[0] / time for time in us[1:3]]
        assert all(abs(float(cell) - share) < 0.006 for cell, share in zip(cells[6:], shares, strict=True))


def test_errors_that_the_page_of_libraries_states_are_those_of_the_records():
    page = KERNELS_PAGE.read_text(encoding="utf-8")
    compared = [record.parameters for record in ops.read_libraries() if "errors" in record.parameters]
    worst = {}
    for start in ("ids", "logits"):
        errors = [parameters["errors"] for parameters in compared if parameters["start"] == start]
        worst[start] = [max(error[name] for error in errors) for name in ("worst", "rms")]
    (bounds,) = {(facts["errors"]["worst_bound"], facts["errors"]["rms_bound"]) for facts in compared}
    tolerance = moe_matmul.tolerance
    assert bounds == (tolerance.worst, tolerance.rms)
    assert all(error <= bound for error, bound in zip(worst["ids"], bounds, strict=True))
    assert "{:.4f} of the largest value".format(worst["ids"][0]) in page and f"{worst['ids'][1]:.4f} rms" in page
    assert "up to {:.2f} and {:.3f}".format(*worst["logits"]) in page


def test_implementations_of_libraries_stand_beside_our_fastest_one():
    records = ops.read_library_ops()
    rows = ops.implementation_table(records).splitlines()[2:]
    sizes = list(dict.fromkeys(record.parameters["m"] for record in records))
    for m, row in zip(sizes, rows, strict=True):
        times = {
            record.parameters["implementation"]: record.median for record in records if record.parameters["m"] == m
        }
        libraries = [time for name, time in times.items() if name.startswith(("triton_kernels", "flashinfer"))]
        ours = min(time for time in times.values() if time not in libraries)
        cells = row.strip("| ").split(" | ")
        assert times[cells[1].strip("`")] == ours
        assert (cells[0], cells[2], cells[-1]) == (str(m), f"{ours * 1e6:,.1f}", f"{ours / min(libraries):.2f}")
