"""FlashInfer's experts: what is refused, how the library is called, and how tiles are chosen."""

import inspect
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from firesteel.device import find_device
from firesteel.errors import KernelError
from firesteel.kernels import ahead
from firesteel.kernels.libraries import flashinfer, flashinfer_moe
from firesteel.kernels.libraries.flashinfer_experts import FlashinferExperts
from firesteel.kernels.libraries.flashinfer_moe import KINDS, choose_profile, moe_ready, name_module
from firesteel.kernels.libraries.package import find_flashinfer
from firesteel.kernels.operands.weights import random_experts
from firesteel.kernels.ops import moe_library
from firesteel.kernels.ops.moe_operands import MoeMatmulOperands
from tests.kernels.libraries.stand_in import make_jit

CPU = find_device("cpu")


def draw(kind, tokens=3, hidden=96, inter=160):
    experts = FlashinferExperts.pack(random_experts(4, hidden, inter, torch.Generator().manual_seed(1)), kind)
    x = torch.ones(tokens, hidden, dtype=torch.bfloat16)
    return x, torch.tensor([[0, -1]] * tokens), torch.ones(tokens, 2), experts


@pytest.fixture
def library(monkeypatch):
    """A stand-in that keeps the arguments of each call; returns the calls."""
    calls = []

    def run(*args, output, **options):
        calls.append((args, options))
        output.fill_(len(calls))

    def quantize(x, swizzled, alignment):
        return x.to(torch.float8_e4m3fn), "scales of x"

    moe = SimpleNamespace(cutlass_fused_moe=run)
    package = SimpleNamespace(fused_moe=moe, mxfp8_quantize=quantize, jit=make_jit("fused_moe_90"))
    monkeypatch.setattr(flashinfer_moe, "import_flashinfer", lambda: package)
    monkeypatch.setattr(flashinfer_moe, "list_tiles", lambda experts, active: ([0], [1]))
    monkeypatch.setattr(flashinfer_moe, "_time", lambda call, profile: 0.0)
    monkeypatch.setattr(flashinfer_moe, "_profiles", {})
    flashinfer_moe._fill.cache_clear()
    return calls


@pytest.mark.parametrize(("kind", "right"), [("bf16", {9}), ("fp8", {9}), ("mxfp8", {10, 12})])
def test_kinds_are_for_their_gpus(monkeypatch, kind, right):
    monkeypatch.setattr(flashinfer_moe, "lacks_flashinfer", lambda name: None)
    devices = {major: replace(CPU, capability=(major, 0), name="GPU") for major in (8, 9, 10, 11, 12)}
    assert {major for major, device in devices.items() if moe_ready(kind)(device) is None} == right
    assert f"{kind} activations on SM" in moe_ready(kind)(devices[8])
    assert "activations on" in moe_ready(kind)(CPU)


def test_missing_package_is_named_before_the_gpu(monkeypatch):
    asked = []
    monkeypatch.setattr(flashinfer_moe, "lacks_flashinfer", lambda name: asked.append(name) or "is missing")
    assert moe_ready("bf16")(replace(CPU, capability=(9, 0))) == "is missing" and asked == ["fused_moe_90"]


def test_modules_are_named_as_the_library_names_them():
    assert [name_module(gpu, 132) for gpu in ((9, 0), (10, 3), (12, 1))] == [
        "fused_moe_90",
        "fused_moe_103",
        "fused_moe_120",
    ]


def test_h20_asks_for_its_own_module_unless_the_library_may_not_compile(monkeypatch):
    asked = []
    monkeypatch.setattr(flashinfer_moe, "lacks_flashinfer", lambda name: asked.append(name))
    h20 = replace(CPU, capability=(9, 0), num_sms=78)
    monkeypatch.delenv("FLASHINFER_DISABLE_JIT", raising=False)
    moe_ready("bf16")(h20)
    monkeypatch.setenv("FLASHINFER_DISABLE_JIT", "1")
    moe_ready("bf16")(h20)
    assert asked == ["fused_moe_90_h20_prebuilt_d", "fused_moe_90"]
    assert name_module((10, 0), 78) == "fused_moe_100"


def test_operands_that_the_library_cannot_take_are_refused():
    x, ids, weights, experts = draw("bf16")
    operands = MoeMatmulOperands(x=x, ids=ids, weights=weights, experts=experts, limit=7.0)

    def refuse(**changes):
        return moe_library.refuse_kind("bf16", replace(operands, **changes))

    assert refuse() is None
    assert "bf16 tokens" in refuse(x=x.float()) and "fp32 weights" in refuse(weights=weights.bfloat16())
    assert "1 to 32768 tokens, not 0" in refuse(x=x[:0])
    assert "contiguous" in refuse(x=x.mT.contiguous().mT)


def test_call_has_padded_tokens_biases_and_the_three_numbers_of_swiglu(library):
    x, ids, weights, experts = draw("bf16")
    y = flashinfer_moe.run(x, ids, weights, experts, 1.702, 7.0)
    assert y.shape == x.shape and y.is_contiguous() and y[0, 0] == len(library)
    (given, small_ids, given_weights, up, down, out_type), options = library[-1]
    assert given.shape == (3, 128) and not given[:, 96:].any() and given_weights is weights
    assert small_ids.dtype == torch.int32 and small_ids.tolist() == ids.tolist()
    assert up is experts.gate_up_values and down is experts.down_values and out_type is torch.bfloat16
    assert (
        options["fc1_expert_biases"] is experts.gate_up_bias and options["fc2_expert_biases"] is experts.down_bias
    )
    numbers = [options[f"swiglu_{name}"] for name in ("alpha", "beta", "limit")]
    assert [part.tolist() for part in numbers] == [[pytest.approx(1.702)] * 4, [1.0] * 4, [7.0] * 4]
    assert options["use_w4_group_scaling"] and not options["use_fused_finalize"]
    assert "use_wfp4afp8_humming" not in options and len(options["quant_scales"]) == 2


def test_fp8_call_has_residuals_between_its_scales(library):
    *operands, experts = draw("fp8")
    flashinfer_moe.run(*operands, experts, 1.702, 7.0)
    scales = library[-1][1]["quant_scales"]
    assert library[-1][1]["use_wfp4afp8_humming"] and library[-1][1]["use_w4_group_scaling"]
    assert scales[1] is experts.gate_up_residual and scales[4] is experts.down_residual
    assert scales[0].shape == (4, 8, 1, 16, 4) and scales[0].dtype == torch.int32


def test_mxfp8_call_has_rounded_tokens_and_weights_as_long_integers(library):
    *operands, experts = draw("mxfp8")
    flashinfer_moe.run(*operands, experts, 1.702, 7.0)
    (given, _, _, up, down, _), options = library[-1]
    assert given.dtype == torch.float8_e4m3fn and options["input_sf"] == "scales of x"
    assert up.dtype == torch.int64 and up.shape == (4, 512, 8) and down.shape == (4, 128, 16)
    scales = options["quant_scales"]
    assert scales[0].shape == (4, 512, 1) and scales[2].shape == (4, 128, 2) and scales[1].tolist() == [1.0] * 4
    assert options["use_mxfp8_act_scaling"] and "use_w4_group_scaling" not in options


def test_its_module_is_told_when_it_is_compiled_or_loaded(library, monkeypatch):
    told = []
    monkeypatch.setattr(flashinfer, "_told", set())
    monkeypatch.setattr(ahead, "_listeners", [told.append])
    flashinfer_moe.run(*draw("bf16"), 1.702, 7.0)
    assert told == ["FlashInfer's module fused_moe_90"]


def test_tiles_are_chosen_once_for_about_as_many_tokens(library):
    for tokens in (3, 4, 3):
        flashinfer_moe.run(*draw("bf16", tokens), 1.702, 7.0)
    assert len(flashinfer_moe._profiles) == 1
    flashinfer_moe.run(*draw("bf16", 5), 1.702, 7.0)
    assert [key.tokens for key in flashinfer_moe._profiles] == [4, 8]
    assert library[-1][1]["profile_ids"] == [0, 1]


def test_capture_before_tiles_are_chosen_is_refused(library, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    with pytest.raises(KernelError, match="call it once with 3 tokens before"):
        flashinfer_moe.run(*draw("bf16"), 1.702, 7.0)


def test_fastest_tiles_of_those_that_run_are_chosen(monkeypatch):
    """Tile 1 was not built, and of the others 2 is fastest in the first matmul and 0 in the second."""
    times = {0: 2.0, 2: 1.0, 3: 1.0, 5: 2.0}

    def call(profile):
        if profile[0] == 1:
            raise RuntimeError("left out")

    monkeypatch.setattr(flashinfer_moe, "_time", lambda call, profile: times[profile[0]] + times[profile[1]])
    assert choose_profile(call, [0, 1, 2], [3, 5]) == (2, 3)


def test_matmuls_may_have_no_tile_in_common(monkeypatch):
    """Only tile 5 fits the second matmul; for the first matmul it is tile 1, which was not built."""

    def call(profile):
        if profile[0] == 1:
            raise RuntimeError("left out")

    monkeypatch.setattr(flashinfer_moe, "_time", lambda call, profile: 0.0)
    assert choose_profile(call, [1, 2], [5]) == (2, 5)


@pytest.mark.parametrize(("first", "why"), [([0, 1], "left out of the build"), ([], "none fits these sizes")])
def test_library_without_a_tile_that_runs_is_an_error(first, why):
    def call(profile):
        raise RuntimeError("left out of the build")

    with pytest.raises(KernelError, match=why):
        choose_profile(call, first, [2, 3])


def test_error_of_the_gpu_names_the_tiles_and_is_not_taken_for_a_tile_that_was_not_built():
    def call(profile):
        raise torch.AcceleratorError("an illegal memory access was encountered")

    with pytest.raises(KernelError, match=r"tiles \(0, 2\) .* illegal memory access"):
        choose_profile(call, [0, 1], [2, 3])


def test_lack_of_memory_is_not_taken_for_a_tile_that_was_not_built():
    def call(profile):
        raise torch.OutOfMemoryError("12 GiB")

    with pytest.raises(torch.OutOfMemoryError):
        choose_profile(call, [0, 1], [2, 3])


class Runner:
    """A stand-in for the library's runner: three tiles of a matmul, of 128, 256 and 64 columns."""

    columns = (128, 256, 64, 128, 256, 64)

    def __init__(self):
        self.asked = []

    def get_valid_tactics_for_shape(self, matmul, rows, columns):
        self.asked.append((matmul, rows, columns))
        mine = range(3) if matmul == 1 else range(3, 6)
        return [tile for tile in mine if columns % self.columns[tile] == 0]

    def get_tactic_occupancy(self, tile):
        return int(self.columns[tile] > 64)  # not for this GPU


@pytest.mark.parametrize(
    ("kind", "types", "flags"),
    [
        ("bf16", (torch.bfloat16, torch.uint8), (True, False, False)),
        ("fp8", (torch.bfloat16, torch.uint8), (True, False, True)),
        ("mxfp8", (torch.float8_e4m3fn, torch.int64), (False, True, False)),
    ],
)
def test_only_tiles_that_fit_the_weights_run(monkeypatch, kind, types, flags):
    """The library does not check tiles that it is told to use: others read behind the weights."""
    runner = Runner()
    key = (*types, torch.bfloat16, False, flags[0], flags[1], False, False, flags[2])
    module = SimpleNamespace(MoERunner=SimpleNamespace(runner_dict={key: runner}))
    core = SimpleNamespace(get_cutlass_fused_moe_module=lambda name: module)
    ran = []

    def run(*args, output, profile_ids, **options):
        ran.append(profile_ids)

    moe = SimpleNamespace(
        core=core,
        cutlass_fused_moe=run,
        cutlass_fused_moe_workspace_size=lambda *sizes, **options: None,
    )
    quantize = lambda x, swizzled, alignment: (x.to(torch.float8_e4m3fn), None)  # noqa: E731
    package = SimpleNamespace(fused_moe=moe, mxfp8_quantize=quantize, jit=make_jit())
    monkeypatch.setattr(flashinfer_moe, "import_flashinfer", lambda: package)
    monkeypatch.setattr(flashinfer_moe, "_time", lambda call, profile: call(profile).numel())
    monkeypatch.setattr(flashinfer_moe, "_profiles", {})
    flashinfer_moe.run(*draw(kind), 1.702, 7.0)
    assert runner.asked == [(1, 512, 128), (2, 128, 256)]
    assert {up for up, _ in ran} == {0} and {down for _, down in ran} == {3, 4}


def test_nothing_is_launched_while_kernels_are_compiled_ahead(library, monkeypatch):
    monkeypatch.setattr(flashinfer_moe, "current_ahead", lambda: "ahead")
    x, *others = draw("bf16")
    assert flashinfer_moe.run(x, *others, 1.702, 7.0).shape == x.shape and not library


@pytest.mark.peer
def test_the_package_takes_what_it_is_given(library):
    if find_flashinfer() is None:
        pytest.skip("the package flashinfer is not installed")
    for kind in KINDS:
        flashinfer_moe.run(*draw(kind), 1.702, 7.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import flashinfer
    taken = inspect.signature(flashinfer.fused_moe.cutlass_fused_moe).parameters
    assert list(taken)[:6] == [
        *("input", "token_selected_experts", "token_final_scales"),
        *("fc1_expert_weights", "fc2_expert_weights", "output_dtype"),
    ]
    assert {name for _, options in library for name in options} | {"output"} <= set(taken)
