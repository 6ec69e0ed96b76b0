"""FlashInfer: when it is refused, which pages it is given, and when it plans again."""

import importlib.util
import inspect
import shutil
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from firesteel.device import find_device
from firesteel.errors import KernelError
from firesteel.formats import mxfp4
from firesteel.kernels import ahead
from firesteel.kernels.libraries import flashinfer
from firesteel.kernels.libraries.flashinfer import AttentionSession, AttentionShape, cut_pages, flashinfer_ready
from firesteel.kernels.libraries.package import LibraryPackage, find_flashinfer
from tests.kernels.libraries.stand_in import make_jit

CPU = find_device("cpu")
HOPPER = replace(CPU, capability=(9, 0), name="NVIDIA H200")
SHAPE = AttentionShape("fa2", 64, 8, 64, 4, None, torch.device("cpu"))


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Everything that is looked for is there; returns the names that `find_spec` and `which` find."""
    found = {"tvm_ffi", "nvcc", "ninja"}
    package = LibraryPackage("flashinfer", "0.7.2", tmp_path)
    monkeypatch.setattr(flashinfer, "find_flashinfer", lambda: package)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in found else None)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in found else None)
    monkeypatch.setattr(flashinfer, "TOOLKIT", tmp_path / "nvcc")
    return found


@pytest.mark.parametrize(
    ("missing", "words"),
    [("tvm_ffi", "apache-tvm-ffi beside flashinfer"), ("nvcc", "CUDA toolkit"), ("ninja", "pip install ninja")],
)
def test_missing_part_is_named(installed, missing, words):
    assert flashinfer_ready("fa2")(HOPPER) is None
    installed.remove(missing)
    assert words in flashinfer_ready("fa2")(HOPPER)


def test_compiler_is_not_needed_for_modules_that_were_compiled_ahead(installed, tmp_path):
    installed -= {"nvcc", "ninja"}
    names = [f"batch_prefill_attention_sink_bf16_swa_{window}_fa3" for window in (False, True)]
    for name in names:
        assert "CUDA toolkit" in flashinfer_ready("fa3")(HOPPER)
        (tmp_path / "data" / "aot" / name).mkdir(parents=True)
        (tmp_path / "data" / "aot" / name / f"{name}.so").touch()
    assert flashinfer_ready("fa3")(HOPPER) is None
    assert "CUDA toolkit" in flashinfer_ready("fa2")(HOPPER)


def test_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(flashinfer, "find_flashinfer", lambda: None)
    assert "not installed: install firesteel[flashinfer]" in flashinfer_ready("fa3")(HOPPER)
    flashinfer.import_flashinfer.cache_clear()
    with pytest.raises(KernelError, match="not installed"):
        flashinfer.import_flashinfer()


def test_compiler_beside_the_path_is_found_too(installed, tmp_path):
    installed.remove("nvcc")
    (tmp_path / "nvcc").touch()
    assert flashinfer_ready("fa2")(HOPPER) is None


@pytest.mark.parametrize(
    ("backend", "capabilities"), [("fa2", {(8, 0), (9, 0), (10, 0), (12, 1)}), ("fa3", {(9, 0)})]
)
def test_backends_are_for_their_gpus(installed, backend, capabilities):
    every = [None, (7, 5), (8, 0), (9, 0), (10, 0), (12, 1)]
    devices = {capability: replace(CPU, capability=capability, name="GPU") for capability in every}
    runs = {capability for capability, device in devices.items() if flashinfer_ready(backend)(device) is None}
    assert runs == capabilities
    assert "compute capability" in flashinfer_ready(backend)(devices[None])


def test_pages_of_requests_with_queries_are_listed():
    cut = cut_pages([0, 1, 1, 4], [5, 7, 8], page_size=4, window=None)
    assert cut.query_starts == [0, 1, 4] and cut.page_starts == [0, 2, 4] and cut.last_lens == [1, 4]
    assert cut.rows == [0, 0, 2, 2] and cut.columns == [0, 1, 0, 1]


@pytest.mark.parametrize(("held", "first"), [(8, 0), (11, 0), (12, 1), (16, 2)])
def test_pages_before_the_window_are_left_out(held, first):
    """With a window of 8, the query of 11 tokens sees 3 to 10, that of 12 sees 4 to 11."""
    cut = cut_pages([0, 1], [held], page_size=4, window=8)
    assert cut.columns == list(range(first, -(-held // 4)))
    several = cut_pages([0, 4], [held], page_size=4, window=8)
    assert several.columns[0] == max(0, held - 4 + 1 - 8) // 4


def test_a_plan_is_kept_while_lengths_stay_and_pages_are_read_again(monkeypatch):
    planned = []

    class Wrapper:
        def __init__(self, workspace, **options):
            assert options["kv_layout"] == "HND" and options["window_left"] == -1

        def plan(self, starts, ends, pages, last, *sizes, **options):
            planned.append((starts.tolist(), ends.tolist(), last.tolist(), pages))

    monkeypatch.setattr(
        flashinfer, "import_flashinfer", lambda: SimpleNamespace(BatchAttentionWithAttentionSinkWrapper=Wrapper)
    )
    monkeypatch.setattr(flashinfer, "find_workspace", lambda device: None)
    session = AttentionSession(SHAPE)
    table = torch.tensor([[7, 3]])
    session.plan(cut_pages([0, 1], [5], 4, None), table, 0.125)
    session.plan(cut_pages([0, 1], [5], 4, None), table + 1, 0.125)
    assert len(planned) == 1 and planned[0][:3] == ([0, 1], [0, 2], [1])
    assert planned[0][3].tolist() == [8, 4] and planned[0][3].dtype == torch.int32
    session.plan(cut_pages([0, 1], [6], 4, None), table, 0.125)
    assert len(planned) == 2 and planned[1][2] == [2] and planned[1][3].tolist() == [7, 3]


@pytest.fixture
def told(monkeypatch):
    """Receives what is told of modules, as an engine that serves requests does."""
    names = []
    monkeypatch.setattr(flashinfer, "_told", set())
    monkeypatch.setattr(ahead, "_listeners", [names.append])
    return names


def test_module_that_a_call_compiles_or_loads_is_told_once(told):
    library = SimpleNamespace(jit=make_jit("first"))
    flashinfer.note_call(library, "first", "first")
    flashinfer.note_call(library, "first", "first")
    assert told == ["FlashInfer's module first"]
    library.jit.names += ["second"]
    flashinfer.note_call(library, "first", "first")
    assert told[1:] == ["FlashInfer's module second"], "also one that a call needed beside its own"


@pytest.mark.peer
def test_the_package_lists_the_modules_that_it_was_asked_for(real, told, monkeypatch):
    from flashinfer.jit.core import gen_jit_spec

    monkeypatch.setattr("flashinfer.jit.core.check_cuda_arch", lambda: None)
    gen_jit_spec("mine", [])
    flashinfer.note_call(real, "mine", "mine")
    assert "FlashInfer's module mine" in told


@pytest.fixture
def real(monkeypatch, tmp_path):
    """The package itself, which imports without a GPU."""
    if find_flashinfer() is None:
        pytest.skip("the package flashinfer is not installed")
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path))
    flashinfer.import_flashinfer.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return flashinfer.import_flashinfer()


@pytest.mark.peer
def test_the_package_takes_what_it_is_given(real):
    wrapper = real.BatchAttentionWithAttentionSinkWrapper
    made = {"kv_layout", "backend", "q_data_type", "kv_data_type", "head_dim_qk", "head_dim_vo", "window_left"}
    assert made <= set(inspect.signature(wrapper.__init__).parameters)
    plan = list(inspect.signature(wrapper.plan).parameters)
    named = ["qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "num_qo_heads"]
    assert plan[1:9] == [*named, "num_kv_heads", "head_dim_qk", "page_size"]
    assert {"causal", "window_left", "sm_scale", "q_data_type", "kv_data_type"} <= set(plan)
    assert "out" in inspect.signature(wrapper.run).parameters


@pytest.mark.peer
def test_its_quantiser_differs_from_ours_in_the_rule_of_the_scale_and_in_ties(real):
    """It rounds the scale of a group up, so that nothing saturates; OCP's rule, which is ours, rounds down.

    A value midway between two codes becomes the smaller one there, and the even one here.
    """
    from flashinfer.fused_moe.prepare import _quantize_mxfp4_linear as quantize

    generator = torch.Generator().manual_seed(1)
    spread = torch.exp2(torch.randint(-12, 12, (512, 1), generator=generator))
    x = (torch.randn(512, 256, generator=generator) * spread).bfloat16()
    (codes, scales), (our_codes, our_scales) = quantize(x), mxfp4.quantize(x.float())
    groups = x.float().unflatten(-1, (-1, 32))
    largest = groups.abs().amax(-1) / torch.exp2(our_scales.float() - 127)
    assert torch.equal(scales.int() - our_scales.int(), (largest > 6).int()) and (largest > 6).sum() > 0
    theirs, ours = (mxfp4.unpack(part).unflatten(-1, (-1, 32)) for part in (codes, our_codes))
    scaled = (groups / torch.exp2(our_scales.float() - 127).unsqueeze(-1)).abs()
    midway = torch.isin(scaled, torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]))
    negative_zero = (theirs % 8 == 0) & (ours % 8 == 0)
    differs = (theirs != ours) & ~negative_zero & (scales == our_scales).unsqueeze(-1)
    assert differs.any() and not (differs & ~midway).any()
