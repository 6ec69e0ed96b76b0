"""Device code of the expert MLP: tiles, and what Triton compiles them to for GPUs that are not here."""

from dataclasses import replace

import pytest

from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.proof.prove import prove_code
from tests.kernels.triton_version import find_triton_version

FEW_SPILLS = 4  # after the loop, where they cost nothing


def code_of(capability, variant):
    return next(code for code in moe_matmul.make_device_code(capability) if code.variant == variant)


@pytest.mark.parametrize(
    ("target", "variant", "instruction"),
    [
        ("sm_90a", "triton:gemm bf16 fc1 128x128x64", "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"),
        ("sm_90a", "triton:gemv mxfp8 fc1 16x64x128", "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16"),
        ("sm_121a", "triton:gemm mxfp8 fc1 128x128x128", "kind::mxf8f6f4.block_scale"),
        ("sm_121a", "triton:gemv mxfp8 fc2 16x64x128", "kind::mxf8f6f4.block_scale"),
        ("sm_121a", "triton:gemm mxfp4 fc2 128x128x128", "kind::mxf4nvf4.block_scale"),
    ],
)
def test_compiles_to_the_intended_matrix_instructions(target, variant, instruction):
    if "kind::" in instruction and find_triton_version() < (3, 8):
        pytest.skip("Triton < 3.8 has no block-scaled MMA for SM12x")
    capability = (9, 0) if target == "sm_90a" else (12, 1)
    proof = prove_code("moe_matmul", code_of(capability, variant), target)
    assert any(instruction in line for line in proof.ptx)
    assert all(instruction.partition(".m64")[0] in line for line in proof.ptx)
    assert proof.fits and proof.spills <= FEW_SPILLS
    assert proof.verdict == ("native-fp4" if "kind::" in instruction else "bf16")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a", "sm_121a"])
def test_every_variant_compiles_and_fits(target):
    number = int(target.strip("sm_a"))
    for code in moe_matmul.make_device_code(divmod(number, 10)):
        proof = prove_code("moe_matmul", code, target)
        assert proof.fits and proof.spills <= FEW_SPILLS, proof
        if number >= 120 and "fc" in code.variant and find_triton_version() >= (3, 8):
            assert proof.verdict == ("bf16" if "bf16" in code.variant else "native-fp4"), proof


def test_tiles_grow_with_the_pairs_of_an_expert_and_can_be_pinned():
    pytest.importorskip("triton")
    from firesteel.kernels.triton import moe_matmul as device

    tiles = [device.gemm_tiles(pairs, (9, 0), native=False) for pairs in (1, 16, 64, 256)]
    assert [up.rows for up, _ in tiles] == [16, 32, 64, 128]
    assert all(up.rows == down.rows and up.tail < up.rows for up, down in tiles)
    assert [tile.columns for tile in device.gemv_tiles(4)] == [64, 64]
    assert [tile.columns for tile in device.gemv_tiles(16)] == [128, 64]
    up, down = device.pin(tiles[3], "64x256", (9, 0))
    assert (up.rows, up.columns, up.tail) == (64, 256, 32) and up == down
    assert [tile.narrower for tile in (tiles[0][0], up, *device.pin(tiles[3], "256x64", (9, 0))[:1])] == [
        {"TAIL": 0, "MIDDLE": 0},
        {"TAIL": 32, "MIDDLE": 32},
        {"TAIL": 64, "MIDDLE": 128},
    ]
    assert device.pin(tiles[3], "auto", (9, 0)) == tiles[3]


def test_pinned_tile_has_the_same_shape_whatever_the_number_of_pairs():
    """The tile for few pairs is so deep that a large tile of that depth exceeds any GPU's shared memory."""
    pytest.importorskip("triton")
    from firesteel.kernels.triton import moe_matmul as device

    for tile, stages in (("16x64", 3), ("128x128", 3), ("256x128", 2), ("128x256", 2)):
        for capability in ((9, 0), (12, 1)):
            chosen = (device.gemv_tiles(4), device.gemm_tiles(256, capability, False))
            few, many = (device.pin(choice, tile, capability) for choice in chosen)
            wanted = 4 if capability == (9, 0) else stages
            assert few == many and {(pinned.depth, pinned.stages) for pinned in few} == {(64, wanted)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "activation"),
    [
        ("sm_86", "bf16"),
        ("sm_90a", "bf16"),
        ("sm_100a", "bf16"),
        *(("sm_121a", activation) for activation in ACTIVATIONS),
    ],
)
@pytest.mark.parametrize("tile", ["16x64", "16x256", "256x64", "128x128", "128x256", "256x128"])
@pytest.mark.parametrize("matmul", ["fc1", "fc2"])
def test_pinned_tiles_fit(target, activation, tile, matmul):
    pytest.importorskip("triton")
    from firesteel.kernels.triton import moe_matmul as device

    capability = divmod(int(target.strip("sm_a")), 10)
    code = code_of(capability, f"triton:gemv {activation} {matmul} 16x64x128")
    pinned, _ = device.pin(device.gemv_tiles(4), tile, capability)
    constants = {**code.constants, **pinned.constants, **pinned.narrower}
    proof = prove_code("moe_matmul", replace(code, constants=constants, **pinned.options), target)
    assert proof.fits
    native = activation != "bf16" and find_triton_version() >= (3, 8)
    assert proof.verdict == ("native-fp4" if native else "bf16")


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 1)])
def test_device_code_names_every_tile_that_any_number_of_pairs_picks(capability):
    pytest.importorskip("triton")
    from firesteel.kernels.triton import moe_matmul as device

    variants = {code.variant for code in moe_matmul.make_device_code(capability)}
    for activation in ACTIVATIONS:
        native = capability[0] == 12 and activation != "bf16"
        gemv = [device.gemv_tiles(pairs) for pairs in range(1, 257)]
        gemm = [device.gemm_tiles(pairs, capability, native) for pairs in range(1, 600)]
        for way, tiles in (("gemv", gemv), ("gemm", gemm)):
            wanted = {f"{name} {tile}" for pair in tiles for name, tile in zip(("fc1", "fc2"), pair, strict=True)}
            before = f"triton:{way} {activation} "
            assert {variant.removeprefix(before) for variant in variants if variant.startswith(before)} == wanted


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("capability", "is_sm12x"), [((9, 0), False), ((12, 1), True)])
def test_device_code_has_the_store_that_the_target_launches(capability, is_sm12x, activation):
    constants = code_of(capability, f"triton:gemm store {activation} K=2880").constants
    assert constants["FORMAT"] == activation and constants["NATIVE"] is (is_sm12x and activation != "bf16")
