"""The expert MLP: rounding of activations, refusals, and Triton kernels interpreted and run on a GPU."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import firesteel
from firesteel.device import find_device
from firesteel.errors import ArgumentsRefused, KernelError
from firesteel.formats import mxfp4, mxfp8
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.libraries.triton_kernels import lacks_triton_kernels
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.kernels.operands.fed import store
from firesteel.kernels.operands.weights import random_experts
from firesteel.kernels.ops.moe_matmul import moe_matmul, swiglu
from firesteel.kernels.ops.moe_operands import MoeMatmulOperands
from firesteel.kernels.proof.verify import check, verify
from tests.kernels.libraries.stand_in import use_stand_in
from tests.kernels.triton_version import find_triton_version

PARTS = Path(__file__).with_name("moe_parts.py")
MODULE = sys.modules["firesteel.kernels.ops.moe_matmul"]
TOKEN_COUNTS = (1, 2, 3, 7, 16, 63, 64, 65, 255, 257, 320, 512, 1000, 4096, 8192)


def draw(
    tokens, experts, hidden, inter, active, activation="bf16", *, tile="auto", seed=1, used=None, device="cpu"
):
    """Draws a sample whose tokens choose among the first `used` experts."""
    generator = torch.Generator(device).manual_seed(seed)
    weights = random_experts(experts, hidden, inter, generator)
    x = torch.randn(tokens, hidden, device=device, generator=generator).bfloat16()
    scores = torch.rand(tokens, used or experts, device=device, generator=generator)
    chosen, ids = scores.topk(active)
    label = f"T={tokens} E={experts} A={active} {hidden}x{inter} {activation} {tile}"
    limit = 1.0  # low, so that many values are clamped
    operands = MoeMatmulOperands(
        x=x,
        ids=ids,
        weights=chosen.softmax(-1),
        experts=weights,
        limit=limit,
        activation=activation,
        tile=tile,
    )
    return Sample(label, (operands,))


def test_experts_in_the_order_of_a_library_are_for_that_library_alone(monkeypatch):
    use_stand_in(monkeypatch)
    (operands,) = draw(3, 5, 256, 128, 2).args
    ways = moe_matmul.implementations
    ((reordered,),) = ways["triton_kernels"].pack([(operands,)])
    assert torch.equal(moe_matmul.reference(reordered), moe_matmul.reference(operands))
    for name in ("triton:gemv", "triton:gemm", "cuda:stream"):
        assert "the checkpoint's order, not in that of a library" in ways[name].accepts(reordered)
    accepts = ways["triton_kernels"].accepts
    assert accepts(reordered) is None
    assert "of triton_kernels, not in that of the checkpoint" in accepts(operands)
    assert "bf16 activations, not mxfp8" in accepts(replace(reordered, activation="mxfp8"))
    assert "its own tiles" in accepts(replace(reordered, tile="16x64"))
    with pytest.raises(ArgumentsRefused, match="--kernels moe_matmul=IMPLEMENTATION"):
        gpu = replace(find_device("cpu"), capability=(9, 0), name="GPU")
        moe_matmul.choose(gpu, "cuda", Ledger())(reordered)


def test_experts_that_calls_share_are_reordered_once(monkeypatch):
    use_stand_in(monkeypatch)
    (operands,), (other,) = draw(3, 5, 160, 96, 2).args, draw(3, 5, 160, 96, 2, seed=2).args
    calls = moe_matmul.implementations["triton_kernels"].pack([(operands,), (other,), (operands,)])
    first, second, third = (reordered.experts for (reordered,) in calls)
    assert first is third and first is not second
    assert moe_matmul.bytes(*calls[0]) > moe_matmul.bytes(operands)  # its order pads


def test_library_that_is_missing_is_named_and_nothing_else_runs():
    gpu = replace(find_device("cpu"), capability=(9, 0), name="GPU")
    if lacks_triton_kernels(gpu) is None:
        pytest.skip("triton_kernels is installed")
    with pytest.raises(KernelError, match=r"moe_matmul=triton_kernels needs .* firesteel\[triton-kernels\]"):
        moe_matmul.choose(gpu, "triton_kernels", Ledger())


@pytest.mark.parametrize("activation", ["mxfp8", "mxfp4"])
def test_reference_rounds_the_activations_of_both_matmuls(activation):
    (operands,) = draw(3, 5, 96, 64, 2, activation).args
    x, ids, weights, experts, limit = operands.x, operands.ids, operands.weights, operands.experts, operands.limit
    operands = replace(operands, x=x.float())
    kind = {"mxfp8": mxfp8, "mxfp4": mxfp4}[activation]
    y = moe_matmul.reference(operands)
    rounded = kind.dequantize(*kind.quantize(x)).double()
    for token in range(3):
        expected = torch.zeros(96, dtype=torch.float64)
        for expert, share in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            gate_up = mxfp4.dequantize(experts.gate_up_codes[expert], experts.gate_up_scales[expert]).double()
            inner = swiglu(gate_up @ rounded[token] + experts.gate_up_bias[expert].double(), limit)
            inner = kind.dequantize(*kind.quantize(inner.float())).double()
            down = mxfp4.dequantize(experts.down_codes[expert], experts.down_scales[expert]).double()
            expected += share * (down @ inner + experts.down_bias[expert].double())
        assert (y[token] - expected).norm() <= 1e-5 * expected.norm()
    assert not torch.equal(y, moe_matmul.reference(replace(operands, activation="bf16")))


def test_small_samples_cover_every_activation():
    """compute-sanitizer runs the small samples only."""
    small = [
        sample for sample in moe_matmul.make_samples(torch.device("cpu")) if moe_matmul.bytes(*sample.args) < 4e6
    ]
    labels = {sample.label for sample in small}
    for before in ("T=3 E=32 96x160", "T=65 E=5 160x96"):
        assert {f"{before} {activation}" for activation in ACTIVATIONS} <= labels
    assert {sample.args[0].activation for sample in small} == set(ACTIVATIONS)


def test_error_for_an_unknown_activation_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown activation 'fp4'; the activations are bf16, mxfp8, mxfp4, fp8"):
        moe_matmul.reference(*draw(1, 5, 32, 32, 1, "fp4").args)


def test_interpreted_kernels_equal_the_reference(interpret):
    """Covers every tile, tails in both matrices and in the tokens, one and several chunks of pairs."""
    interpret(
        moe_matmul,
        [
            draw(1, 5, 96, 96, 4),
            draw(2, 32, 160, 96, 1, "mxfp8"),
            draw(3, 8, 96, 160, 1, "mxfp4"),
            draw(7, 5, 288, 96, 2, used=2),
            draw(17, 5, 96, 96, 1, "mxfp8", used=1),
            draw(65, 5, 96, 96, 2),
            draw(130, 3, 96, 96, 2, "mxfp4"),
            draw(19, 3, 96, 96, 2, tile="16x64"),
            draw(33, 2, 96, 96, 1, "mxfp8", tile="32x64", used=1),
            draw(290, 2, 96, 96, 1, tile="256x64", used=1),  # a whole tile, and the narrowest for the rest
            draw(370, 2, 96, 96, 1, tile="256x64", used=1),  # the one between
        ],
    )


def with_fed(sample):
    """Returns the sample with x stored as by rms_norm_fed and NaN in x itself, so that only `fed` may be read."""
    (operands,) = sample.args
    fed = store(operands.x, operands.activation, native=False)
    poisoned = replace(operands, x=torch.full_like(operands.x, float("nan")), fed=fed)
    return Sample(f"{sample.label} fed", (poisoned,))


@pytest.mark.parametrize("way", ["triton:gemv", "triton:gemm"])
def test_stored_rows_replace_plain_ones_and_give_the_same_bits(call_interpreted, way):
    samples = [draw(3, 8, 96, 96, 2, activation) for activation in ACTIVATIONS]
    plain = call_interpreted(moe_matmul, way, samples)
    fed = call_interpreted(moe_matmul, way, [with_fed(sample) for sample in samples])
    assert all(map(torch.equal, fed, plain)) and plain[0].isfinite().all()


def test_stored_rows_of_another_activation_are_refused():
    sample = draw(3, 8, 96, 96, 2, "mxfp8")
    for way in ("triton:gemv", "triton:gemm"):
        accepts = moe_matmul.implementations[way].accepts
        assert accepts(*with_fed(sample).args) is None
        other = with_fed(draw(3, 8, 96, 96, 2, "mxfp4")).args[0].fed
        refused = accepts(replace(sample.args[0], fed=other))
        assert "but was given 3 x 96 values rounded to mxfp4" in refused


def test_pairs_are_sorted_and_values_rounded_as_in_torch(run_interpreted):
    run_interpreted(PARTS, "sort", "widen", "quantize")


def test_native_block_scaled_kernels_equal_the_reference(run_interpreted):
    """Runs the SM12x path in the interpreter."""
    if find_triton_version() < (3, 8):
        pytest.skip("Triton < 3.8 does not interpret dot_scaled")
    samples = [draw(3, 5, 96, 96, 2, "mxfp8"), draw(5, 5, 160, 96, 2, "mxfp4", used=3)]
    run_interpreted(PARTS, "native", samples=samples)


def accepts(way, sample, **changes):
    return moe_matmul.implementations[f"triton:{way}"].accepts(replace(sample.args[0], **changes))


def test_unsupported_arguments_are_refused_with_the_reason():
    sample = draw(65, 5, 64, 64, 2)
    x = sample.args[0].x
    assert accepts("gemm", sample) is None
    assert accepts("gemv", sample) == "is for at most 64 tokens, not 65"
    assert accepts("gemm", sample, x=x.float()) == "wants bf16 tokens, not torch.float32"
    assert accepts("gemm", sample, x=x.T.contiguous().T) == "wants contiguous tensors"
    assert accepts("gemm", sample, x=x[:0]) == "wants at least one token"
    assert "mxfp4, not 'fp8'" in accepts("gemm", sample, activation="fp8")


@pytest.mark.parametrize("tile", ["16x16", "64x32", "256x256", "16x512"])
def test_a_pinned_tile_that_cannot_be_computed_is_refused(tile):
    assert f"and {tile} is pinned" in accepts("gemm", draw(65, 5, 64, 64, 2, tile=tile))
    assert accepts("gemm", draw(65, 5, 64, 64, 2, tile="64x128")) is None


@pytest.mark.gpu
@pytest.mark.parametrize("tile", ["16x64", "32x256", "128x64", "128x256", "256x128"])
def test_a_pinned_tile_is_the_one_that_runs_on_a_gpu(tile):
    device, ledger = find_device("cuda"), Ledger()
    sample = draw(65, 32, 2880, 2880, 4, tile=tile, device="cuda")
    failures = [check.failure for check in verify(moe_matmul, device, [sample]) if check.refusal is None]
    assert failures and not any(failures)
    moe_matmul.choose(device, "triton", ledger)(*sample.args)
    (entry,) = ledger.entries.values()
    tiles = {launch.kernel: launch.tile for launch in entry.launches}
    assert tiles["fc1"].startswith(tile + "x") and tiles["fc2"].startswith(tile + "x")


@pytest.mark.parametrize(
    ("version", "refused"), [("3.6.0", True), ("3.7.1", True), ("3.8.0", False), ("3.10", False)]
)
def test_quantised_activations_on_sm12x_need_a_triton_that_multiplies_them(monkeypatch, version, refused):
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton, "__version__", version)
    monkeypatch.setattr(MODULE, "find_capability", lambda device: (12, 1))
    for activation in ACTIVATIONS:
        why = accepts("gemv", draw(1, 5, 64, 64, 2, activation))
        assert (why is not None) == (refused and activation != "bf16")
        assert why is None or "torch >= 2.14" in why


def test_triton_runs_on_a_gpu_if_requested_and_is_refused_on_a_cpu():
    cpu = find_device("cpu")
    gpu = replace(cpu, name="H200", capability=(9, 0))
    names = [candidate.name for candidate in moe_matmul.choose(gpu, "triton", Ledger()).candidates]
    assert names == ["triton:gemv", "triton:gemm"]
    assert [candidate.name for candidate in moe_matmul.choose(cpu, None, Ledger()).candidates] == ["reference"]
    with pytest.raises(KernelError, match=r"needs an NVIDIA GPU of compute capability 8.0"):
        moe_matmul.choose(cpu, "triton", Ledger())


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("way", ["gemv", "gemm"])
@pytest.mark.parametrize("tokens", TOKEN_COUNTS)
def test_real_shapes_on_a_gpu(tokens, way, activation):
    implementation = moe_matmul.implementations[f"triton:{way}"]
    seed = int(torch.randint(1 << 30, ()))
    sample = draw(tokens, 128, 2880, 2880, 4, activation, seed=seed, device="cuda")
    why = implementation.accepts(*sample.args)
    if way == "gemv" and tokens > MODULE.GEMV_TOKENS:
        assert "is for at most 64 tokens" in why
        return
    assert why is None
    failure = check(moe_matmul, implementation, sample)
    assert failure is None, f"seed {seed}: {failure}"


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["gemv", "gemm"])
def test_all_tokens_on_one_expert_on_a_gpu(way):
    sample = draw(64, 128, 2880, 2880, 1, used=1, device="cuda")
    assert check(moe_matmul, moe_matmul.implementations[f"triton:{way}"], sample) is None


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["gemv", "gemm"])
def test_a_cuda_graph_replays_with_other_experts(way):
    """A call decides nothing on the CPU, so a captured graph accepts new tokens and new ids."""
    function = moe_matmul.implementations[f"triton:{way}"].function
    first, second = (draw(17, 32, 2880, 2880, 4, seed=seed, device="cuda").args[0] for seed in (1, 2))
    function(first)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function(first)
    for name in ("x", "ids", "weights"):
        getattr(first, name).copy_(getattr(second, name))
    graph.replay()
    assert torch.equal(y, function(first))


@pytest.mark.gpu
def test_pairs_are_sorted_and_values_rounded_as_in_torch_on_a_gpu():
    """Includes the assembly that widens MXFP4, which the interpreter cannot run."""
    source = str(Path(firesteel.__file__).parents[1])
    command = [sys.executable, PARTS, "no samples", "sort", "widen", "quantize"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("tokens", "width", "why"),
    [
        (32_768, 2880, None),  # the longest step of `bench agreement`
        (93_206, 2880, None),  # 372824 pairs of 5760 columns are 2^31 - 17408
        (93_207, 2880, "372828 pairs are too many"),
        (256_000, 2880, "counts values in 32 bits: 1024000 pairs are too many"),
        (600_000, 64, "takes up to 65535 tiles of 32 rows: 2400000 pairs are too many"),
    ],
)
def test_steps_whose_pairs_leave_32_bits_are_refused(tokens, width, why):
    few = random_experts(1, width, width, torch.Generator().manual_seed(0))
    operands = MoeMatmulOperands(
        x=torch.empty(tokens, width, dtype=torch.bfloat16, device="meta"),
        ids=torch.empty(tokens, 4, dtype=torch.int64, device="meta"),
        weights=torch.empty(tokens, 4, device="meta"),
        experts=few,
        limit=7.0,
    )
    refusal = moe_matmul.implementations["triton:invariant"].accepts(operands)
    assert refusal is None if why is None else why in refusal
