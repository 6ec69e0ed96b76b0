"""Ranks, best values and the verdict of a matrix; earlier files are read, and their cells have no rank."""

import json

from firesteel.lab.codec import from_json
from firesteel.lab.matrix.result import (
    CRASHED,
    DONE,
    NOT_JUDGED,
    CellOutcome,
    Configuration,
    Matrix,
    MatrixResult,
    summarise,
)
from firesteel.lab.path.slots import SlotRow, SlotState, make_table
from firesteel.lab.verdict import Verdict


def cell(speed, *, unranked="", verdict=Verdict.PASSED, **figures):
    figures |= {} if speed is None else {"tg_tok_s": speed}
    return CellOutcome(status=DONE, verdict=verdict, unranked=unranked, reason=unranked, figures=figures)


def test_cells_rank_by_the_speed_of_decoding_and_equal_ones_share_a_rank():
    result = summarise(Matrix(gates={}), [cell(30.0), cell(50.0), cell(50.0), cell(10.0)])
    assert [outcome.rank for outcome in result.cells] == [3, 1, 1, 4]


def test_cell_that_is_not_proven_is_kept_without_a_rank_and_is_not_best():
    fast = cell(99.0, unranked="kernel path failed: moe=marlin", verdict=Verdict.FAILED, ttft_ms=1.0)
    result = summarise(Matrix(gates={}), [cell(30.0, ttft_ms=9.0), fast, cell(50.0, ttft_ms=5.0)])
    assert [outcome.rank for outcome in result.cells] == [2, None, 1]
    assert result.cells[1].figures["tg_tok_s"] == 99.0
    assert result.find_best("tg_tok_s") == 50.0 and result.find_best("ttft_ms") == 5.0
    assert result.find_best("pp_tok_s") is None
    assert result.words == "3 of 3 cells done, 1 without a rank"
    assert result.verdict is Verdict.FAILED and result.all_done


def test_verdict_of_a_matrix_needs_every_cell():
    unproven = cell(1.0, verdict=Verdict.UNPROVEN)
    assert summarise(Matrix(gates={}), [cell(1.0), unproven]).verdict is Verdict.UNPROVEN
    assert summarise(Matrix(gates={}), [cell(1.0), cell(2.0)]).verdict is Verdict.PASSED
    crashed = CellOutcome.failed(CRASHED, "SIGSEGV")
    assert summarise(Matrix(gates={}), [unproven, crashed]).verdict is Verdict.FAILED


def test_result_is_read_as_it_was_written():
    slots = make_table("vllm", "", [SlotRow(slot="moe", state=SlotState.SEEN, values=("marlin",))])
    known = CellOutcome(
        status=DONE,
        gates={"configuration": "best"},
        flags=("--fast",),
        environment={"VLLM_X": "1"},
        verdict=Verdict.UNPROVEN,
        slots=slots,
        unranked="so",
        folder="cells/best",
    )
    matrix = Matrix(
        gates={"configuration": ("best",)}, configurations=(Configuration(name="best", expect="moe=a"),)
    )
    result = summarise(matrix, [known])
    content = json.loads(json.dumps(result.as_dict()))
    assert from_json(MatrixResult, content, "it") == result and result.cells[0].configuration == "best"
    assert content["verdict"] == "unproven" and content["cells"][0]["slots"]["slots"]["moe"]["value"] == "marlin"


def test_cell_of_an_earlier_version_has_no_rank():
    earlier = {"status": "done", "gates": {"kv_dtype": "fp8"}, "figures": {"tg_tok_s": 9.0}, "reason": ""}
    read = from_json(CellOutcome, earlier, "it")
    assert read.unranked == NOT_JUDGED and read.verdict is Verdict.UNPROVEN and read.figures == {"tg_tok_s": 9.0}
    assert summarise(Matrix(gates={}), [read]).cells[0].rank is None


def test_secrets_of_a_matrix_are_hidden():
    best = Configuration(name="best", flags=("--api-key", "sk-3"), environment={"HF_TOKEN": "hf_4", "VLLM_X": "1"})
    matrix = Matrix(
        gates={},
        engine="serve --port {port} --api-key sk-1",
        flags=("--hf-token", "sk-2", "--x"),
        environment={"OPENAI_API_KEY": "sk-5"},
        configurations=(best,),
        reference_url="http://me:sk-6@host",
    )
    kept = matrix.as_dict()
    assert kept["engine"] == "serve --port {port} --api-key (hidden)" and kept["flags"] == [
        "--hf-token",
        "(hidden)",
        "--x",
    ]
    assert kept["configurations"][0]["environment"] == {"HF_TOKEN": "(hidden)", "VLLM_X": "1"}
    assert not [
        number for number in range(1, 7) if f"sk-{number}" in json.dumps(kept)
    ] and "hf_4" not in json.dumps(kept)
