"""linear: Triton kernels interpreted and run on a GPU, and refusals."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from firesteel.errors import KernelError
from firesteel.formats import mxfp4
from firesteel.kernels.ledger import Ledger, Ran
from firesteel.kernels.op.chosen import Chosen
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.kernels.operands.fed import store
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.linear_code import SHAPES
from firesteel.kernels.ops.linear_operands import LinearOperands
from firesteel.kernels.proof.verify import check
from firesteel.kernels.tiles.tile_pin import LARGEST_SIDE, LARGEST_TILE
from tests.kernels.triton_version import find_triton_version

MODULE = sys.modules["firesteel.kernels.ops.linear"]
PARTS = Path(__file__).with_name("linear_parts.py")
TOKEN_COUNTS = (1, 2, 3, 7, 16, 63, 64, 65, 255, 257, 320, 512, 1000, 4096, 8192)


def draw(tokens, rows, columns, activation="bf16", tile="auto", *, bias=True, seed=1, device="cpu"):
    """Draws random codes as weights; their rms is 2.93, so these scales keep the magnitude of x."""
    generator = torch.Generator(device).manual_seed(seed)
    on = {"generator": generator, "device": device}
    x = torch.randn(tokens, columns, **on).bfloat16()
    codes = torch.randint(256, (rows, columns // 2), dtype=torch.uint8, **on)
    middle = 125 - columns.bit_length() // 2
    scales = torch.randint(middle - 1, middle + 2, (rows, columns // 32), dtype=torch.uint8, **on)
    offsets = torch.randn(rows, **on).bfloat16() if bias else None
    label = f"T={tokens} {rows}x{columns} {activation} {tile}"
    weight = Mxfp4Weight(codes=codes, scales=scales)
    return Sample(label, (LinearOperands(x=x, weight=weight, bias=offsets, activation=activation, tile=tile),))


def ones(tokens, rows, columns):
    """Returns a sample with bf16 weights and no bias."""
    return LinearOperands(x=torch.ones(tokens, columns).bfloat16(), weight=torch.ones(rows, columns).bfloat16())


def test_interpreted_kernels_equal_the_reference(interpret):
    """Covers tails in tokens, rows and K = 90 groups, with chosen and pinned tiles."""
    interpret(
        linear,
        [
            draw(1, 38, 2880),
            draw(1, 20, 96, "mxfp8", bias=False),
            draw(7, 40, 160, "mxfp4"),
            draw(9, 36, 96, "mxfp8"),
            draw(17, 76, 96, "mxfp4", bias=False),
            draw(63, 68, 32),
            draw(65, 100, 96, "mxfp8"),
            draw(3, 76, 96, "mxfp8", "32x64"),
            draw(33, 152, 32, "bf16", "16x16"),
            draw(65, 130, 64, "mxfp4", "64x128"),
            draw(0, 36, 96),
            Sample("bf16 weights", (ones(1, 5, 96),)),
        ],
    )


def with_fed(sample):
    """Returns the sample with x stored as by rms_norm_fed and NaN in x itself, so that only `fed` may be read."""
    (operands,) = sample.args
    fed = store(operands.x, operands.activation, native=False)
    poisoned = replace(operands, x=torch.full_like(operands.x, float("nan")), fed=fed)
    return Sample(f"{sample.label} fed", (poisoned,))


def test_stored_rows_replace_plain_ones_and_give_the_same_bits(call_interpreted):
    samples = [draw(3, 76, 160, activation) for activation in ACTIVATIONS]
    plain = call_interpreted(linear, "triton:gemm", samples)
    fed = call_interpreted(linear, "triton:gemm", [with_fed(sample) for sample in samples])
    assert all(map(torch.equal, fed, plain)) and plain[0].isfinite().all()


def test_stored_rows_are_refused_before_bf16_weights_and_of_another_activation():
    (operands,) = with_fed(draw(3, 76, 160, "mxfp8")).args
    assert accepts("gemm", operands) is None
    plain = replace(operands, activation="bf16")
    assert "wants 3 x 160 values rounded to bf16" in accepts("gemm", plain)
    chosen = Chosen(linear, list(linear.implementations.values()), Ledger())
    with pytest.raises(KernelError, match="reference reads stored activations only before MXFP4 weights"):
        chosen(replace(plain, weight=torch.zeros(76, 160).bfloat16()))


def test_native_kernels_equal_the_reference(run_interpreted):
    """Runs the SM12x path in the interpreter."""
    if find_triton_version() < (3, 8):
        pytest.skip("Triton < 3.8 does not interpret dot_scaled")
    drawn = [
        draw(3, 36, 160, "mxfp8"),
        draw(5, 72, 96, "mxfp8"),
        draw(9, 36, 96, "mxfp4", bias=False),
        draw(65, 40, 160, "mxfp4"),
    ]
    run_interpreted(PARTS, samples=drawn)


def accepts(way, operands):
    return linear.implementations[f"triton:{way}"].accepts(operands)


def test_unsupported_arguments_are_refused_with_the_reason():
    (operands,) = draw(65, 64, 96).args
    x, weight = operands.x, operands.weight

    def refusal(way="gemm", **changes):
        return accepts(way, replace(operands, **changes))

    assert refusal() is None and refusal(bias=None) is None
    assert "is for bf16 weights" in refusal("gemv", x=x[:1])
    odd = Mxfp4Weight(codes=weight.codes[:3], scales=weight.scales[:3])
    assert "3 rows of 96 leave a part of one" in refusal(weight=odd, bias=None)
    assert refusal(x=x.float()) == "multiplies bf16 tokens by MXFP4 weights, not torch.float32"
    assert "wants contiguous tokens" in refusal(x=x.T.contiguous().T)
    assert "takes activations bf16, mxfp8, mxfp4, not 'fp8'" in refusal(activation="fp8")
    assert refusal(activation="mxfp8", tile="128x256") is None
    for tile in (f"16x{2 * LARGEST_SIDE}", f"{LARGEST_SIDE}x{LARGEST_SIDE}"):
        assert refusal(tile=tile).endswith(f"and {tile} is pinned")
    assert LARGEST_SIDE**2 > LARGEST_TILE
    huge = torch.empty(2**26, 32, dtype=torch.bfloat16, device="meta")
    assert "67108864 tokens are too many" in refusal(x=huge)


def test_bf16_weights_take_neither_rounded_activations_nor_pinned_tiles():
    operands = ones(3, 5, 64)
    assert accepts("gemm", operands) is None
    rounded, pinned = replace(operands, activation="mxfp8"), replace(operands, tile="64x64")
    assert "rounds activations to mxfp8 only before MXFP4 weights" in accepts("gemm", rounded)
    assert "pins tiles of MXFP4 weights only" in accepts("gemv", pinned)


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1", "3.8.0", "3.10"])
def test_quantised_activations_on_sm12x_need_a_triton_that_multiplies_them(monkeypatch, version):
    monkeypatch.setattr("triton.__version__", version)
    monkeypatch.setattr(MODULE, "find_capability", lambda device: (12, 1))
    for activation in ACTIVATIONS:
        why = accepts("gemm", *draw(1, 64, 64, activation).args)
        refused = activation != "bf16" and version in ("3.6.0", "3.7.1")
        assert ("needs Triton >= 3.8" in why) if refused else why is None


def test_pinned_tile_that_no_implementation_accepts_is_an_error():
    chosen = Chosen(linear, [linear.implementations["reference"]], Ledger())
    with pytest.raises(KernelError, match="reference has no tiles, and 64x64 is pinned"):
        chosen(*draw(1, 33, 96, "bf16", "64x64").args)


def run_on_gpu(sample, seed):
    implementation = linear.implementations["triton:gemm"]
    assert implementation.accepts(*sample.args) is None
    failure = check(linear, implementation, sample)
    assert failure is None, f"seed {seed}: {failure}"


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("tokens", TOKEN_COUNTS)
def test_real_shapes_on_a_gpu(tokens, activation):
    seed = int(torch.randint(1 << 30, ()))
    for rows, columns in SHAPES[:2]:
        run_on_gpu(draw(tokens, rows, columns, activation, seed=seed, device="cuda"), seed)


@pytest.mark.gpu
@pytest.mark.parametrize(("tokens", "activation"), [(1, "bf16"), (3, "mxfp8"), (64, "mxfp4"), (257, "bf16")])
def test_lm_head_on_a_gpu(tokens, activation):
    seed = int(torch.randint(1 << 30, ()))
    run_on_gpu(draw(tokens, *SHAPES[2], activation, bias=False, seed=seed, device="cuda"), seed)


@pytest.mark.gpu
def test_results_beyond_2_to_the_31_are_stored_correctly():
    """11264 tokens times the 201088 rows of lm_head are 2.27e9 values."""
    (operands,) = draw(11264, *SHAPES[2], bias=False, device="cuda").args
    y = linear.implementations["triton:gemm"].function(operands)
    for rows in (slice(0, 2), slice(-2, None)):
        expected = linear.reference(replace(operands, x=operands.x[rows]))
        assert torch.allclose(y[rows].float(), expected.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("tile", ["16x16", "32x64", "64x128", "128x128", "16x256", "256x16"])
def test_pinned_tiles_run_and_are_in_the_ledger(tile):
    sample, ledger = draw(63, 5120, 2880, "bf16", tile, device="cuda"), Ledger()
    run_on_gpu(sample, 1)
    Chosen(linear, [linear.implementations["triton:gemm"]], ledger)(*sample.args)
    launches = ledger.entries[Ran("linear", "triton:gemm", "bf16")].launches
    assert f"{tile}x64" in {launch.tile for launch in launches}


@pytest.mark.gpu
def test_a_cuda_graph_replays_with_other_tokens():
    function = linear.implementations["triton:gemm"].function
    (operands,) = draw(17, 2880, 4096, "mxfp8", device="cuda").args
    function(operands)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function(operands)
    operands.x.copy_(draw(17, 2880, 4096, seed=2, device="cuda").args[0].x)
    graph.replay()
    assert torch.equal(y, function(operands))


@pytest.mark.gpu
def test_weights_are_widened_exactly_on_a_gpu():
    """A product with one value 1 among zeros returns the weight itself, for scales from 2^-100 to 2^33."""
    scales = torch.arange(27, 161, dtype=torch.uint8, device="cuda")[:, None].repeat(2, 3)
    codes = torch.randint(256, (len(scales), 48), dtype=torch.uint8, device="cuda")
    x = torch.eye(96, dtype=torch.bfloat16, device="cuda")
    weight = Mxfp4Weight(codes=codes, scales=scales)
    y = linear.implementations["triton:gemm"].function(LinearOperands(x=x, weight=weight))
    assert torch.equal(y.T, mxfp4.dequantize(codes, scales, torch.bfloat16))


def test_cublas_sums_in_fp32_and_restores_torchs_setting(monkeypatch):
    settings, seen = torch.backends.cuda.matmul, []

    def multiply(x, weight, bias):
        seen.append(settings.allow_bf16_reduced_precision_reduction)
        return x

    monkeypatch.setattr(MODULE.functional, "linear", multiply)
    before = settings.allow_bf16_reduced_precision_reduction
    linear.implementations["cublas"].function(LinearOperands(x=torch.zeros(1), weight=torch.zeros(1)))
    assert before and seen == [False] and settings.allow_bf16_reduced_precision_reduction is before


def test_cublas_accepts_only_many_tokens_and_bf16_weights():
    refuse = linear.implementations["cublas"].accepts
    operands = ones(128, 8, 32)
    assert refuse(operands) is None
    assert "128 tokens or more, not 127" in refuse(ones(127, 8, 32))
    half = replace(operands, x=operands.x.half(), weight=operands.weight.half())
    assert "bf16 by bf16, not torch.float16" in refuse(half)
    packed = Mxfp4Weight(codes=torch.zeros(8, 16).byte(), scales=torch.zeros(8, 1).byte())
    assert "these are MXFP4" in refuse(replace(operands, weight=packed))
