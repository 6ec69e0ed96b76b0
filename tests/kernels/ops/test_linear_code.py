"""Device code of linear: tiles, and what Triton compiles them to for GPUs that are not here."""

import itertools
from dataclasses import replace

import pytest

from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.linear_code import SHAPES
from firesteel.kernels.proof.prove import prove_code
from firesteel.kernels.triton import linear as bf16_code
from firesteel.kernels.triton import mxfp4_linear as device_code
from firesteel.kernels.triton.mxfp4_product import Tile
from tests.kernels.triton_version import find_triton_version


def code_of(capability, variant):
    return next(code for code in linear.make_device_code(capability) if code.variant == variant)


@pytest.mark.parametrize(
    ("target", "variant", "instruction"),
    [
        (
            "sm_90a",
            "triton:gemm mxfp4-weight bf16 5120x2880 128x256x64",
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16",
        ),
        (
            "sm_90a",
            "triton:gemm mxfp4-weight mxfp8 5120x2880 16x64x128",
            "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16",
        ),
        ("sm_120a", "triton:gemm mxfp4-weight mxfp8 5120x2880 16x64x128", "kind::mxf8f6f4.block_scale"),
        ("sm_121a", "triton:gemm mxfp4-weight mxfp8 2880x4096 128x128x128", "kind::mxf8f6f4.block_scale"),
        ("sm_121a", "triton:gemm mxfp4-weight mxfp4 5120x2880 16x64x128", "kind::mxf4nvf4.block_scale"),
        ("sm_121a", "triton:gemm mxfp4-weight mxfp4 5120x2880 128x128x128", "kind::mxf4nvf4.block_scale"),
    ],
)
def test_compiles_to_the_intended_matrix_instructions(target, variant, instruction):
    if "kind::" in instruction and find_triton_version() < (3, 8):
        pytest.skip("Triton < 3.8 has no block-scaled MMA for SM12x")
    number = int(target.strip("sm_a"))
    proof = prove_code("linear", code_of(divmod(number, 10), variant), target)
    assert proof.ptx and all(instruction in line for line in proof.ptx)
    assert proof.fits and proof.spills == 0
    assert proof.verdict == ("native-fp4" if "kind::" in instruction else "bf16")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_120a", "sm_121a"])
def test_every_product_of_quantised_activations_is_native_on_sm12x(target):
    if find_triton_version() < (3, 8):
        pytest.skip("Triton < 3.8 has no block-scaled MMA for SM12x")
    capability = divmod(int(target.strip("sm_a")), 10)
    for code in linear.make_device_code(capability):
        if {"mxfp8", "mxfp4"} & set(code.variant.split()) and "store" not in code.variant:
            assert prove_code("linear", code, target).verdict == "native-fp4", code.variant


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "activation"),
    [("sm_80", "bf16"), ("sm_90a", "bf16"), *(("sm_121a", activation) for activation in ACTIVATIONS)],
)
@pytest.mark.parametrize("tile", ["16x16", "256x16", "16x256", "64x128", "128x256", "256x128"])
def test_pinned_tiles_fit(target, activation, tile):
    capability = divmod(int(target.strip("sm_a")), 10)
    code = code_of(capability, f"triton:gemm mxfp4-weight {activation} 5120x2880 16x64x128")
    pinned = device_code.pin_tile(tile, capability)
    constants = {**code.constants, **pinned.constants}
    proof = prove_code("linear", replace(code, constants=constants, **pinned.options), target)
    assert proof.fits
    assert proof.verdict == ("bf16" if activation == "bf16" or find_triton_version() < (3, 8) else "native-fp4")


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 1)])
def test_device_code_of_lm_head_has_no_bias_and_all_its_tiles(capability):
    codes = list(linear.make_device_code(capability))
    heads = [code for code in codes if "201088x2880" in code.variant]
    assert all(code.constants["bias"] is None and "bias" not in code.signature for code in heads)
    others = [code for code in codes if code not in heads and "store" not in code.variant]
    assert all(code.signature["bias"] == "*bf16" for code in others)
    named = {code.variant for code in heads}
    assert {"triton:gemv T=1 201088x2880", "triton:gemv 201088x2880 16x32x128"} <= named
    for tokens in range(2, 512):
        tile = bf16_code.pick_tile(tokens, 201088)
        assert f"triton:gemm 201088x2880 {tile.tokens}x{tile.rows}x{tile.columns}" in named
        for activation in ACTIVATIONS:
            native = capability[0] == 12 and activation != "bf16"
            tile = device_code.pick_tile(tokens, 201088, capability, native)
            assert f"triton:gemm mxfp4-weight {activation} 201088x2880 {tile}" in named


@pytest.mark.parametrize("capability", [(9, 0), (12, 1)])
def test_device_code_stores_every_activation_at_every_width(capability):
    for activation, columns in itertools.product(ACTIVATIONS, (2880, 4096)):
        code = code_of(capability, f"triton:gemm mxfp4-weight store {activation} K={columns}")
        assert (code.constants["FORMAT"], code.constants["K"]) == (activation, columns)
        assert code.constants["NATIVE"] is (capability[0] == 12 and activation != "bf16")


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 1)])
def test_device_code_names_every_tile_that_any_number_of_tokens_picks(capability):
    codes = {code.variant: code for code in linear.make_device_code(capability)}
    for activation in ACTIVATIONS:
        native = capability[0] == 12 and activation != "bf16"
        named = {
            variant.split()[-1]: code
            for variant, code in codes.items()
            if variant.startswith(f"triton:gemm mxfp4-weight {activation} ")
        }
        wanted = {
            str(device_code.pick_tile(tokens, rows, capability, native))
            for tokens in range(1, 16385)
            for rows, _ in SHAPES
        }
        assert set(named) == wanted
        assert all(("x_scales" in code.signature) == native for code in named.values())
    others = [set(variant.split()) & set(ACTIVATIONS) for variant in codes if "mxfp4-weight" not in variant]
    assert not any(others)


@pytest.mark.parametrize(
    ("tokens", "rows", "capability", "native", "expected"),
    [
        (8192, 5120, (9, 0), False, "128x256x64"),
        (8192, 5120, (8, 0), False, "128x128x64"),
        (8192, 5120, (12, 1), True, "128x128x128"),
        (256, 5120, (9, 0), False, "64x128x64"),
        (65, 2880, (9, 0), False, "32x64x128"),
        (1, 201088, (9, 0), False, "16x64x128"),
        (3, 97, None, False, "16x64x128"),
    ],
)
def test_tile_depends_on_the_shape(tokens, rows, capability, native, expected):
    assert str(device_code.pick_tile(tokens, rows, capability, native)) == expected


def test_pinned_tile_keeps_its_size_and_has_enough_warps():
    assert device_code.pin_tile("auto", None) is None
    assert device_code.pin_tile("128x256", (12, 1)) == Tile(rows=128, columns=256, depth=64, warps=8, stages=2)
    assert device_code.pin_tile("128x256", (9, 0)) == Tile(rows=128, columns=256, depth=64, warps=8, stages=4)
    assert device_code.pin_tile("128x128", (9, 0)).warps == 4 and device_code.pin_tile("128x128", None).warps == 8
    assert device_code.pin_tile("16x16", None) == Tile(rows=16, columns=16, depth=64, warps=1, stages=3)
    assert device_code.pin_tile("16x64", None).warps == 4


@pytest.mark.parametrize(
    ("tokens", "rows", "expected"),
    [
        (2, 5120, (16, 32, 128)),
        (17, 2880, (32, 32, 128)),
        (64, 5120, (64, 32, 128)),
        (64, 201088, (64, 64, 64)),
        (100, 2880, (64, 32, 128)),
        (4096, 128, (64, 32, 128)),
        (8192, 128, (128, 128, 64)),
        (512, 5120, (128, 128, 64)),
    ],
)
def test_tiles_of_bf16_weights_reach_many_sms(tokens, rows, expected):
    assert bf16_code.pick_tile(tokens, rows)[:3] == expected
    assert bf16_code.pick_tile(tokens, rows) in bf16_code.TILES
