"""Measured tiles: the token counts they apply to, their use in launches, and files that are refused."""

import errno
import json
from dataclasses import replace

import pytest

from firesteel.device import find_device
from firesteel.errors import KernelError
from firesteel.kernels.ledger import Ledger, Ran
from firesteel.kernels.op.device_code import DeviceCode
from firesteel.kernels.tiles import tuned
from firesteel.kernels.tiles.launch import launch_kernel
from firesteel.kernels.tiles.stamp import hash_kernels
from firesteel.kernels.tiles.tuned import (
    TilesError,
    Tuned,
    find_shipped,
    launch_key,
    load_tuned,
    read_tuned,
    use_options,
    using_options,
    watch_options,
    write_tuned,
)
from firesteel.measure.ops.tune import OPS

GPU = replace(find_device("cpu"), name="NVIDIA H200", capability=(9, 0))
KEY = launch_key("fc1", {"DEPTH": 128, "num_warps": 4})
SOME = Tuned({"linear bf16 64x32": {32: "16x64", 2048: "128x128"}}, {KEY: {"DEPTH": 64}})


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """Replaces the surroundings by those of a GPU machine; afterwards no options are in use."""
    monkeypatch.setattr(
        tuned, "surroundings", lambda device: {"gpu": device.name, "triton": "3.6.0", "kernels": "0f3a"}
    )
    yield
    use_options({})


class FakeKernel:
    __name__ = "fc1"

    def __init__(self):
        self.seen = []

    def __getitem__(self, grid):
        return lambda *args, **options: self.seen.append(options)


def test_tile_holds_for_more_than_half_its_tokens_and_up_to_them():
    tiles = {tokens: SOME.find_tile("linear", "bf16", (64, 32), tokens) for tokens in (16, 17, 32, 33, 1025, 2049)}
    assert tiles == {16: "auto", 17: "16x64", 32: "16x64", 33: "auto", 1025: "128x128", 2049: "auto"}
    assert (
        SOME.find_tile("linear", "mxfp8", (64, 32), 32) == SOME.find_tile("linear", "bf16", (64, 33), 32) == "auto"
    )
    assert Tuned().find_tile("linear", "bf16", (64, 32), 32) == "auto"


def test_launch_uses_the_changed_options_of_its_variant_and_the_ledger_records_it():
    kernel, ledger = FakeKernel(), Ledger()
    with using_options(SOME.options):
        for depth in (128, 256):
            ledger.run(Ran("moe", "triton"), launch_kernel, kernel, (1,), tile="16x64", DEPTH=depth, num_warps=4)
    launch_kernel(kernel, (1,), DEPTH=128, num_warps=4)
    assert [options["DEPTH"] for options in kernel.seen] == [64, 256, 128]
    assert [launch.tile for launch in ledger.entries[Ran("moe", "triton")].launches] == ["16x64 tuned", "16x64"]


def test_strides_do_not_tell_launches_apart():
    assert launch_key("attend", {"D": 64, "Q_STRIDE": 5120}) == launch_key("attend", {"Q_STRIDE": 4096, "D": 64})


def test_watched_launches_are_listed_as_shipped():
    with using_options(SOME.options), watch_options() as seen:
        launch_kernel(FakeKernel(), (1,), DEPTH=128, num_warps=4)
    assert seen == {KEY: {"DEPTH": 128, "num_warps": 4}}


def test_file_reads_back_as_it_was_written(tmp_path):
    write_tuned(tmp_path / "tiles.json", SOME, GPU)
    assert read_tuned(tmp_path / "tiles.json", GPU) == SOME == load_tuned(str(tmp_path / "tiles.json"), GPU)
    assert load_tuned("", GPU) == load_tuned("none", GPU) == Tuned()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu": "NVIDIA A100"}, "measured with gpu NVIDIA A100, this is NVIDIA H200"),
        ({"triton": "3.1.0"}, "measured with triton 3.1.0, this is 3.6.0"),
        ({"kernels": "ffff"}, "measured with kernels ffff, this is 0f3a"),
        ({"format": "other"}, "is not a file of tiles"),
        ({"tiles": []}, "tiles must be a table of tables"),
        ({"tiles": {"linear": {"many": "16x64"}}}, "is not a tile for a number of tokens"),
        ({"options": {KEY: {"ROWS": 64}}}, "ROWS = 64 is not an option of that kernel"),
        ({"options": {KEY: {"DEPTH": 65}}}, "DEPTH = 65 is not an option"),
    ],
    ids=str,
)
def test_file_that_does_not_belong_here_is_refused_with_the_cure(tmp_path, changes, message):
    path = tmp_path / "tiles.json"
    write_tuned(path, SOME, GPU)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(TilesError, match=rf"{message}.*firesteel tune"):
        read_tuned(path, GPU)


def test_missing_broken_or_nonsensical_file_is_refused(tmp_path):
    path = tmp_path / "tiles.json"
    with pytest.raises(TilesError, match="cannot read the tiles"):
        read_tuned(path, GPU)
    path.write_text("{")
    with pytest.raises(TilesError, match="not valid JSON"):
        read_tuned(path, GPU)
    write_tuned(path, Tuned({"linear": {32: "large"}}), GPU)
    with pytest.raises(KernelError, match="neither auto nor ROWSxCOLUMNS"):
        read_tuned(path, GPU)


def test_cpu_refuses_tiles():
    with pytest.raises(TilesError, match="is for a GPU, this is CPU"):
        load_tuned("tiles.json", find_device("cpu"))


def test_shipped_file_is_used_if_it_was_measured_with_this_triton_and_these_kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(tuned, "SHIPPED", tmp_path)
    write_tuned(tmp_path / "nvidia-h200.json", SOME, GPU)
    assert find_shipped(GPU) == (tmp_path / "nvidia-h200.json", "nvidia-h200.json")
    assert load_tuned("auto", GPU) == load_tuned("", GPU) == SOME and load_tuned("none", GPU) == Tuned()
    assert load_tuned("auto", find_device("cpu")) == Tuned()
    other = replace(GPU, name="NVIDIA B200")
    assert load_tuned("auto", other) == Tuned() and "ships for NVIDIA B200" in find_shipped(other)[1]
    monkeypatch.setattr(
        tuned, "surroundings", lambda device: {"gpu": device.name, "triton": "3.9.0", "kernels": "0f3a"}
    )
    assert load_tuned("auto", GPU) == Tuned()
    assert find_shipped(GPU) == (
        None,
        "nvidia-h200.json was measured with triton 3.6.0: tiles of the code are used",
    )


def test_full_disk_is_an_error_and_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "tiles.json"
    write_tuned(path, SOME, GPU)

    def fill(self, text, **given):
        self.open("w").close()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", fill)
    with pytest.raises(TilesError, match=r"cannot write the tiles .*tiles.json: No space left"):
        write_tuned(path, Tuned(), GPU)
    assert read_tuned(path, GPU) == SOME


@pytest.mark.parametrize("path", sorted(tuned.SHIPPED.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_files_match_the_present_kernels(path, monkeypatch):
    """A stale file would never be used: measure it again with firesteel tune, or delete it."""
    content = json.loads(path.read_text())
    assert content["kernels"] == hash_kernels()
    here = {name: content[name] for name in ("gpu", "triton", "kernels")}
    monkeypatch.setattr(tuned, "surroundings", lambda device: here)
    loaded = load_tuned("auto", replace(GPU, name=content["gpu"]))
    assert loaded.tiles or loaded.options
    codes = [code for op in OPS for code in op.make_device_code(GPU.capability) if isinstance(code, DeviceCode)]
    launched, pinned = set(map(key_of, codes)), {tile for sizes in loaded.tiles.values() for tile in sizes.values()}
    assert all(key in launched or tile_of(key) in pinned for key in loaded.options)


def key_of(code):
    constants = {name: value for name, value in code.constants.items() if value is not None}
    return launch_key(
        code.kernel.__name__, {**constants, "num_warps": code.num_warps, "num_stages": code.num_stages}
    )


def tile_of(key):
    sizes = dict(word.split("=") for word in key.split()[1:])
    return f"{sizes.get('ROWS')}x{sizes.get('COLUMNS')}"
