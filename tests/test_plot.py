"""The page and the picture of measured ops and decoding steps."""

import json

import pytest

from firesteel import plot
from firesteel.measure.decode.experts import ExpertCount
from firesteel.measure.decode.figures import DecodeFigures
from firesteel.measure.ops.outcome import Figures, OpOutcome
from firesteel.measure.roofline.roofline import StepShape, step_cost
from firesteel.measure.timing import Timing
from firesteel.model.spec import PRESETS
from firesteel.plot import PlotError, check_libraries, draw_decode, draw_ops, plot_decode, plot_ops


def outcome(op, m, implementation, share, part="", activation=""):
    timing = Timing(samples_s=(1.0,), calls=1, warmups=1)
    figures = Figures(
        timing=timing,
        bytes=share * 100e9,
        flops=0.0,
        rotation_bytes=1.0,
        read_gb_s=100.0,
        matrix_tflop_s=10.0,
        peak_memory_bytes=0,
    )
    return OpOutcome(op=op, part=part, m=m, implementation=implementation, activation=activation, figures=figures)


OUTCOMES = [
    *(outcome("moe_matmul", m, "triton:gemm", 0.1 * number) for number, m in enumerate((1, 64, 8192), start=1)),
    outcome("moe_matmul", 1, "triton:gemv", 0.7, activation="mxfp8"),
    outcome("attention", 32, "triton:decode", 0.5, part="decode full 8192"),
    OpOutcome(op="route", part="", m=1, implementation="triton", activation="", why="refused: too small"),
]


def test_ops_have_a_panel_per_op_and_a_line_per_implementation():
    chart = draw_ops(OUTCOMES, "ops on a GPU").to_dict()
    rows = next(iter(chart["datasets"].values())) if "datasets" in chart else chart["data"]["values"]
    assert {row["panel"] for row in rows} == {"moe_matmul", "attention decode full 8192"}
    assert {row["line"] for row in rows} == {"triton:gemm", "triton:gemv mxfp8", "triton:decode"}
    assert [(row["M"], row["share"]) for row in rows][:3] == [(1, 0.1), (64, 0.2), (8192, pytest.approx(0.3))]
    encoding = chart["spec"]["encoding"]
    assert encoding["x"]["scale"]["type"] == "log" and encoding["y"]["field"] == "share"
    assert "read 100 GB/s, matrix 10.0 TFLOP/s" in json.dumps(chart["title"])


def test_page_needs_no_network(tmp_path):
    page, picture = plot_ops(OUTCOMES, tmp_path / "new", "ops on a GPU")
    text = page.read_text(encoding="utf-8")
    assert "triton:gemv mxfp8" in text and "<script src=" not in text and "vega" in text
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000


def test_ops_without_figures_cannot_be_drawn():
    with pytest.raises(PlotError, match="nothing was measured"):
        draw_ops(OUTCOMES[-1:], "none")


def test_missing_libraries_are_named_with_the_cure(monkeypatch):
    check_libraries()
    monkeypatch.setattr(plot, "LIBRARIES", {"gone_a": "altair", "json": "json", "gone_b": "vl-convert-python"})
    with pytest.raises(PlotError, match="pip install altair vl-convert-python, or pass --no-plot"):
        check_libraries()


def steps(batch, context):
    return DecodeFigures(
        model="m",
        way="CUDA graph, dependent launch",
        samples_ms=(2.0,),
        groups_ms={},
        groups_by="",
        cost=step_cost(PRESETS["gpt-oss-120b"], StepShape(requests=batch, context=context)),
        read_gb_s=4000.0,
        experts=ExpertCount(num_tokens=1, per_step=4.0, per_layer=(4,)),
        checked_steps=1,
        checked_with_delays=False,
        allocated_bytes=1,
    )


def test_decoding_is_drawn_beside_its_floor():
    figures = [steps(batch, context) for batch in (1, 8) for context in (2048, 8192)]
    chart = draw_decode(figures, "decoding").to_dict()
    rows = chart["data"]["values"]
    assert len(rows) == 8 and {row["line"] for row in rows} == {"measured", "floor"}
    speeds = {(row["batch"], row["line"]): row["tok/s"] for row in rows if row["context"] == 2048}
    assert (speeds[1, "measured"], speeds[8, "measured"]) == (500.0, 4000.0)
    assert speeds[1, "floor"] == round(figures[0].floor_tok_s, 1)
    assert "4000 GB/s" in json.dumps(chart["title"])


def test_page_of_decoding_needs_no_network(tmp_path):
    page, picture = plot_decode([steps(1, 2048)], tmp_path, "decoding")
    assert (page.name, picture.name) == ("decode.html", "decode.png")
    assert "<script src=" not in page.read_text(encoding="utf-8")
    assert picture.read_bytes().startswith(b"\x89PNG")
