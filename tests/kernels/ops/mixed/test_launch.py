"""attention=triton:mixed: splits by the real lengths, steps padded for graphs, and its choice of tiles."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from firesteel.device import find_device
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.operands.shapes import ModelShapes
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.attention_operands import MIXED_ROOM, list_workloads
from firesteel.kernels.ops.attention_tiles import MOST_PART_BYTES, Tiles
from firesteel.kernels.ops.mixed.cut import MOST_SPLIT_KEYS, cut_mixed, cut_whole
from firesteel.kernels.ops.mixed.launch import attend_mixed
from firesteel.kernels.proof.prove import prove_code
from firesteel.kernels.proof.verify import check
from firesteel.model.spec import PRESETS
from tests.kernels.ops.mixed.expected_plan import list_splits
from tests.kernels.ops.test_attention import FP8, REAL, REAL_BATCHES, SINKS, on_gpu, pad, sample

PARTS = Path(__file__).with_name("mixed_parts.py")
PLANS = Path(__file__).with_name("plan_parts.py")
MIXED = attention.implementations["triton:mixed"]
STEP = [
    (1, 1100),
    (1, 130),
    (150, 150),
    (0, 9),
    (33, 400),
    (1, 1),
    (1, 64),
]  # two requests are long, one is a prompt


def pad_step(given, requests, rows, columns=2):
    """Pads as prompt steps in graphs do: requests without tokens, rows of no request, wider page tables."""
    (operands,) = pad(given, rows).args
    starts, lens, table = operands.query_starts, operands.kv_lens, operands.page_table
    for request, held in enumerate(lens.tolist()):
        table[request, -(-held // operands.k_pages.shape[2]) :] = -1
    table = torch.nn.functional.pad(table, (0, columns, 0, requests), value=-1)
    padded = replace(
        operands,
        page_table=table,
        query_starts=torch.cat((starts, starts[-1:].expand(requests))),
        kv_lens=torch.cat((lens, lens.new_zeros(requests))),
    )
    return Sample(f"{given.label}, padded", (padded,), given.tolerance)


@pytest.mark.parametrize(
    ("sinks", "splits"),
    [
        pytest.param(SINKS, ("1:2048", "24:256", "9:128"), id="sinks"),
        pytest.param(SINKS, ("99:64", "40:64", "3:1024"), id="sinks, other splits", marks=pytest.mark.slow),
        pytest.param(None, ("99:2048", "99:256", "40:64", "9:128"), id="no sinks", marks=pytest.mark.slow),
    ],
)
def test_any_splits_agree_in_a_padded_step(sinks, splits, run_interpreted):
    """Also with few slots. A request that is not split has the bits of one split. Pages behind it are not read."""
    given = sample("", STEP, page_size=64, dtype=torch.float32, sinks=sinks)
    run_interpreted(PARTS, *splits, samples=[pad_step(given, 9, 7)])


def test_splits_of_other_heads_pages_and_scales_agree(run_interpreted):
    options = {"page_size": 16, "dtype": torch.float32, "sinks": SINKS}
    chunk = [(3, 500), (17, 333), (1, 70)]
    run_interpreted(
        PARTS,
        "40:128",
        samples=[
            pad_step(sample("two kv heads", chunk, heads=8, kv_heads=2, **options), 1, 0, 0),
            pad_step(sample("scales", chunk, scales=(0.7, 3.0), **options), 0, 3),
            pad_step(sample("pages of 128", [(1, 640), (2, 2)], **(options | {"page_size": 128})), 40, 5),
        ],
    )


def test_padded_steps_equal_the_reference_in_bf16_and_on_fp8_pages(interpret):
    checks = interpret(
        attention,
        [
            pad(sample("decoding", [(1, 700), (3, 20)], page_size=64, sinks=SINKS), 2),
            pad(sample("full", [(1, 700), (40, 90), (1, 20)], page_size=64, sinks=SINKS), 6),
            pad(sample("window", [(1, 700), (40, 90)], page_size=64, window=128, sinks=SINKS), 6),
            pad(sample("fp8", [(1, 700), (20, 90)], page_size=64, kv_dtype=FP8, sinks=SINKS, scales=(2.0, 0.1)), 3),
        ],
    )
    taken = [entry.sample for entry in checks if entry.implementation == "triton:mixed" and entry.refusal is None]
    assert len(taken) == 4


def test_parts_take_the_same_memory_in_every_step_and_contexts_change_no_kernel():
    """A step of 2048 tokens beside long contexts has as many slots as one of 16."""
    step = replace(REAL, num_queries=1024, num_requests=255, longest=16384)
    cuts = [
        cut_mixed(replace(step, num_queries=queries, num_requests=requests, longest=longest))
        for queries in (16, 192, 2048, 8192)
        for requests in (1, 255)
        for longest in (4096, 131072)
    ]
    assert {(cut.base, cut.least_keys, cut.most_keys) for cut in cuts} == {(Tiles(16, 8, 64), 128, MOST_SPLIT_KEYS)}
    slot_bytes = 4 * 8 * 128 * 64
    assert {cut.slots * slot_bytes for cut in cuts if cut.slots != 32} == {MOST_PART_BYTES}
    assert {cut.wanted for cut in cuts} == {2 * 132 // 8}


def test_short_contexts_have_no_slots_and_few_tiles_few():
    alone = replace(REAL, num_queries=1, num_requests=1)
    assert cut_mixed(replace(alone, longest=128)).slots == 0
    assert cut_mixed(replace(alone, longest=256)).slots == 2
    assert cut_mixed(replace(alone, longest=131072)).slots == 256
    assert cut_whole(replace(alone, num_queries=64)).splits == 1


@pytest.mark.parametrize(
    ("lens", "tokens", "splits"),
    [
        ([(1, 131072), (2047, 2047)], 2048, [64, 1]),
        ([(1, 8000)] * 7 + [(2041, 2041)], 2048, [4] * 7 + [1]),
        ([(1, 1500)] * 31 + [(2017, 2017)], 2048, [1] * 32),
        ([(1, 8000)] * 7 + [(57, 57)], 64, [5] * 7 + [1]),
        ([(1, 131072)] * 16, 2048, [8] * 16),
    ],
)
def test_long_contexts_are_split_beside_large_prompts_too(lens, tokens, splits):
    queries = [count for count, _ in lens] + [0] * (255 - len(lens))
    starts = [sum(queries[:request]) for request in range(256)]
    held = [held for _, held in lens] + [0] * (255 - len(lens))
    cut = cut_mixed(replace(REAL, num_queries=tokens, num_requests=255, longest=131072))
    assert list_splits(starts, held, cut)[: len(lens)] == splits


@pytest.mark.parametrize("number", ["4", pytest.param("100", marks=pytest.mark.slow)])
def test_random_lengths_are_planned_by_the_rule_within_the_slots(number, run_interpreted):
    """Every tile of every request has all of its splits once, their slots are apart, and padding is covered."""
    run_interpreted(PLANS, number, samples=[sample("", [(1, 1)], page_size=16)])


def test_mixed_runs_only_if_it_is_named():
    gpu = replace(find_device("cpu"), name="H200", capability=(9, 0))
    assert "triton:mixed" not in attention.order
    named = attention.choose(gpu, "triton:mixed", Ledger())
    assert [candidate.name for candidate in named.candidates] == ["triton:mixed"]


@pytest.mark.parametrize("target", ["sm_90a", "sm_121a"])
def test_compiled_code_uses_matrix_instructions_without_spills(target):
    codes = {code.variant: code for code in attention.make_device_code((9, 0))}
    for variant in ("triton:mixed step", "triton:mixed step, fp8-pages"):
        proof = prove_code("attention", codes[variant], target)
        assert proof.verdict == "bf16" and proof.spills == 0 and proof.fits
    for variant in ("triton:mixed plan", "triton:mixed merge"):
        proof = prove_code("attention", codes[variant], target)
        assert proof.spills == 0 and proof.fits


def test_kernels_are_proven_as_they_are_launched(monkeypatch):
    launched = {}

    def keep(kernel, grid, *args, tile, **options):
        launched[kernel.__name__] = options

    monkeypatch.setattr("firesteel.kernels.ops.mixed.launch.launch_kernel", keep)
    (operands,) = sample("", [(3, 70)], page_size=64, heads=64, kv_heads=8).args
    operands = replace(operands, q=operands.q.contiguous())
    attend_mixed(operands, cut_mixed(replace(REAL, num_queries=1024, num_requests=255)))
    codes = {code.variant: code for code in attention.make_device_code((9, 0))}
    for name in ("plan", "step", "merge"):
        code = codes[f"triton:mixed {name}"]
        options = {"num_stages": 3} | launched[code.kernel_name]  # Triton's default
        assert options == code.constants | {"num_warps": code.num_warps, "num_stages": code.num_stages}


def test_workloads_have_prompts_beside_decoding_in_padded_steps():
    shapes = ModelShapes(PRESETS["gpt-oss-20b"], find_device("cpu"))
    parts = {part.label: part for part in list_workloads(shapes, 512, "bf16") if "beside" in part.label}
    assert list(parts) == ["prompt beside 31 x 1500", "prompt beside 7 x 8000", "window prompt beside 31 x 1500"]
    (operands,) = parts["prompt beside 7 x 8000"].draw()
    assert operands.q.shape[0] == 512 and operands.page_table.shape[0] == MIXED_ROOM
    lens = operands.query_starts.diff().tolist()
    assert lens[:8] == [1] * 7 + [505] and not any(lens[8:])
    assert operands.kv_lens[:9].tolist() == [8000] * 7 + [505, 0]
    used = operands.page_table[:8].flatten()
    assert int(used.max()) < operands.k_pages.shape[0] and len(set(used[used > 0].tolist())) == 7 * 125 + 8 - 1
    seen = 7 * 8000 + 505 * 506 // 2
    assert parts["prompt beside 7 x 8000"].flops == 4.0 * seen * 64 * 64
    assert not [part for part in list_workloads(shapes, 64, "bf16") if "beside" in part.label]


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 128], ids=["full", "window"])
@pytest.mark.parametrize("label", REAL_BATCHES)
def test_real_shapes_on_a_gpu(label, window):
    given = sample(
        label, REAL_BATCHES[label], page_size=64, window=window, heads=64, kv_heads=8, device=torch.device("cuda")
    )
    assert check(attention, MIXED, on_gpu(given)) is None


@pytest.mark.gpu
def test_a_graph_of_a_padded_step_follows_lengths_that_change_between_replays():
    lens = [(1, 9000), (1, 700), (200, 3000), (1, 2049)]
    device = torch.device("cuda")
    given = on_gpu(pad(sample("", lens, page_size=64, heads=64, kv_heads=8, device=device), 5))
    (operands,) = given.args
    MIXED(operands)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = MIXED(operands)
    for shorter in (0, 1, 600):
        operands.kv_lens -= shorter
        graph.replay()
        assert torch.equal(y, MIXED(operands))
        assert check(attention, MIXED, given) is None
