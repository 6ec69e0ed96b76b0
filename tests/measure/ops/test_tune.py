"""Tuning on a fake clock: the fastest correct tile and options are chosen."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.operands import TiledOperands
from firesteel.kernels.op.tolerance import exact
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.tiles.launch import launch_kernel
from firesteel.kernels.tiles.tile_pin import AUTO, refuse_tile
from firesteel.kernels.tiles.tuned import Tuned, change_options, read_tuned, using_options, write_tuned
from firesteel.measure.ops.tune import list_tiles, pick, tune_ops
from firesteel.measure.ops.workloads import OpWorkload, list_workloads
from firesteel.model.spec import PRESETS

CPU = find_device("cpu")


class FakeKernel:
    __name__ = "fc1"

    def __getitem__(self, grid):
        return self.launch

    def launch(self, x, **options):
        if options["DEPTH"] == 256:
            raise RuntimeError("out of shared memory")
        x += options["num_warps"] == 8  # a wrong result


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledOperands(TiledOperands):
    x: torch.Tensor
    weight: Mxfp4Weight


@define_op(bytes=lambda *args: 1, tolerance=exact(why="whole numbers"))
def scaled(operands: ScaledOperands):
    y = operands.x.clone()
    rows = 16 if operands.tile == AUTO else int(operands.tile.partition("x")[0])
    launch_kernel(FakeKernel(), (1,), y, ROWS=rows, DEPTH=128, num_warps=4, num_stages=4)
    return y


def workload(m):
    weight = Mxfp4Weight(codes=torch.zeros(64, 16, dtype=torch.uint8), scales=torch.zeros(64, 1, dtype=torch.uint8))
    part = WorkloadPart("", 0.0, 0, lambda: (ScaledOperands(x=torch.ones(m, 32), weight=weight),))
    return OpWorkload(op=scaled, m=m, activation="bf16", part=part)


def clock_of(seconds):
    """A fake clock; `seconds(tile, options)` is the time of a call."""

    def clock(call, inputs):
        tile = call.__self__.tile
        rows = 16 if tile == AUTO else int(tile.partition("x")[0])
        options = {"ROWS": rows, "DEPTH": 128, "num_warps": 4, "num_stages": 4}
        return seconds(tile, change_options("fc1", options))

    return clock


def test_fastest_tile_and_options_are_chosen_with_their_times():
    def seconds(tile, options):
        return (1.0 if tile == "32x64" else 2.0) * (0.5 if options["DEPTH"] == 64 else 1.0)

    tuner = tune_ops({"scaled": [workload(32)]}, CPU, clock=clock_of(seconds))
    assert tuner.tuned.tiles == {"scaled bf16 64x32": {32: "32x64"}}
    assert tuner.tuned.options == {"fc1 DEPTH=128 ROWS=32 num_stages=4 num_warps=4": {"DEPTH": 64}}
    tile, options = tuner.choices
    assert (tile.chosen, tile.before_s, tile.chosen_s, tile.m) == ("32x64", 2.0, 1.0, (32,))
    assert (options.chosen, options.chosen_s) == ("DEPTH=64", pytest.approx(0.5))


def test_candidate_that_is_wrong_or_fails_is_rejected_however_fast():
    def seconds(tile, options):
        return 0.1 if options["num_warps"] == 8 or options["DEPTH"] == 256 else 1.0

    tuner = tune_ops({"scaled": [workload(32)]}, CPU, clock=clock_of(seconds))
    assert not tuner.tuned.tiles and not tuner.tuned.options
    assert [choice.chosen for choice in tuner.choices] == [AUTO, "as shipped"]


def test_options_are_best_over_all_m_that_share_the_launch():
    """With 5 stages, 32 tokens are much faster and 64 tokens slightly slower."""
    clock = clock_of(lambda tile, options: 1.0)

    def seconds(call, inputs):
        stages = change_options("fc1", {"ROWS": 16, "DEPTH": 128, "num_warps": 4, "num_stages": 4})["num_stages"]
        is_few = len(inputs[0][0].x) == 32
        return clock(call, inputs) * {4: 1.0, 5: 0.5 if is_few else 1.1}.get(stages, 2.0)

    tuner = tune_ops({"scaled": [workload(32), workload(64)]}, CPU, clock=seconds)
    assert list(tuner.tuned.options.values()) == [{"num_stages": 5}]
    assert tuner.choices[-1].m == (32, 64) and tuner.choices[-1].chosen_s == pytest.approx(math.sqrt(0.55))


def test_progress_counts_workloads_and_launches():
    told = []
    tune_ops(
        {"scaled": [workload(1), workload(2)], "none": []},
        CPU,
        clock=clock_of(lambda *_: 1.0),
        progress=lambda *progress: told.append(progress),
    )
    assert told == [(1, 4), (2, 4), (3, 4)], "two workloads and the one launch of both"


def test_choices_are_kept_after_each_op():
    kept = []

    def seconds(call, inputs):
        if len(inputs[0][0].x) == 64:
            raise KeyboardInterrupt
        return 1.0 if call.__self__.tile == "32x64" else 2.0

    with pytest.raises(KeyboardInterrupt):
        tune_ops(
            {"scaled": [workload(32)], "again": [workload(64)]},
            CPU,
            clock=seconds,
            keep=lambda tuned: kept.append({key: dict(tiles) for key, tiles in tuned.tiles.items()}),
        )
    assert kept == [{"scaled bf16 64x32": {32: "32x64"}}]


def test_earlier_choices_stay_unless_they_are_measured_again():
    key, launch = "scaled bf16 64x32", "fc1 DEPTH=128 ROWS={} num_stages=4 num_warps=4"
    earlier = Tuned(
        {key: {32: "16x64", 64: "64x64"}, "other bf16 8x8": {1: "16x64"}},
        {launch.format(16): {"DEPTH": 64}, launch.format(99): {"DEPTH": 64}},
    )

    def seconds(tile, options):
        return 1.0 if options["DEPTH"] == 128 else 2.0

    tuner = tune_ops({"scaled": [workload(32)]}, CPU, clock=clock_of(seconds), earlier=earlier)
    assert tuner.tuned.tiles == {key: {64: "64x64"}, "other bf16 8x8": {1: "16x64"}}
    assert tuner.tuned.options == {launch.format(99): {"DEPTH": 64}}
    alone = tune_ops({"scaled": [workload(64)]}, CPU, clock=clock_of(seconds), earlier=Tuned({key: {64: "64x64"}}))
    assert not alone.tuned.tiles, "an empty table is dropped"


def test_gain_of_one_launch_is_not_credited_to_another():
    """More stages make the first launch faster; nothing makes the second one faster."""

    @define_op(bytes=lambda *args: 1, tolerance=exact(why="whole numbers"))
    def twice(operands: ScaledOperands):
        y = operands.x.clone()
        for rows in (16, 32):
            launch_kernel(FakeKernel(), (1,), y, ROWS=rows, DEPTH=128, num_warps=4, num_stages=4)
        return y

    def clock(call, inputs):
        first, second = (
            change_options("fc1", {"ROWS": rows, "DEPTH": 128, "num_warps": 4, "num_stages": 4})
            for rows in (16, 32)
        )
        slower = 0.01 * (second["num_stages"] != 4 or second["DEPTH"] != 128)
        return (0.5 if first["num_stages"] == 5 else 1.0) + slower

    tuner = tune_ops({"twice": [replace(workload(32), op=twice)]}, CPU, clock=clock)
    assert tuner.tuned.options == {"fc1 DEPTH=128 ROWS=16 num_stages=4 num_warps=4": {"num_stages": 5}}
    assert (tuner.choices[-1].before_s, tuner.choices[-1].chosen) == (0.5, "as shipped")


def test_noise_changes_nothing():
    assert pick({"auto": 1.0, "16x64": 0.99}, "auto") == "auto"
    assert pick({"auto": 1.0, "16x64": 0.9}, "auto") == "16x64"


def test_few_tokens_skip_tiles_that_they_would_leave_empty():
    assert list(list_tiles(1)) == ["16x64", "16x128", "16x256"]
    assert "64x128" in list(list_tiles(32)) and "64x128" not in list(list_tiles(16))


def test_many_tokens_try_every_tile_that_is_accepted():
    tiles = list(list_tiles(8192))
    assert {"256x128", "128x256"} <= set(tiles) and "256x256" not in tiles
    assert all(refuse_tile(tile) is None for tile in tiles)


@pytest.mark.gpu
def test_gpu_tunes_a_small_linear_and_the_engine_reads_the_file(tmp_path):
    gpu = find_device("cuda")
    spec = replace(PRESETS["gpt-oss-20b"], vocab_size=4096)
    workloads = list(list_workloads(linear, 32, "bf16", ModelShapes(spec, gpu)))[:2]  # qkv in bf16 and in MXFP4
    tuner = tune_ops({"linear": workloads}, gpu)
    assert len(tuner.choices) >= len(workloads)
    assert all(0 < choice.chosen_s <= choice.before_s < 1 for choice in tuner.choices)
    write_tuned(tmp_path / "tiles.json", tuner.tuned, gpu)
    tuned = read_tuned(tmp_path / "tiles.json", gpu)
    assert tuned == tuner.tuned
    with using_options(tuned.options):
        for workload in workloads:
            args = workload.part.draw()
            assert linear.choose(gpu, None, Ledger())(*args).isfinite().all()
