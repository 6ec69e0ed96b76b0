"""Names that do not run on a device: the error says why, and what runs there."""

from dataclasses import replace
from pathlib import Path

import pytest

from firesteel.device import find_device
from firesteel.errors import KernelError
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.libraries import flashinfer, triton_kernels
from firesteel.kernels.libraries.package import LibraryPackage
from firesteel.kernels.op.lack import explain_lack
from firesteel.kernels.op.op import Implementation, anywhere, capability
from firesteel.kernels.op.requirement import Requirement, parse_requirements
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.registry import parse_pins
from firesteel.measure.ops.sweep import OpsSweep, check_required
from firesteel.model.spec import PRESETS

CPU = find_device("cpu")
H200 = replace(CPU, name="H200", capability=(9, 0))
A100 = replace(CPU, name="A100", capability=(8, 0))


def ways(**needs):
    return [Implementation(name, pytest.fail, need) for name, need in needs.items()]


def test_reasons_are_given_once_or_by_variant_and_only_if_nothing_runs():
    hopper, blackwell = capability(9, 0), capability(10, 0)
    assert explain_lack(ways(first=hopper, second=anywhere), A100) is None
    once = "needs an NVIDIA GPU of compute capability 9.0 or later, this is A100"
    assert explain_lack(ways(first=hopper, second=capability(9, 0)), A100) == once
    each = f"cannot run here: first {once}; second {once.replace('9.0', '10.0')}"
    assert explain_lack(ways(first=hopper, second=blackwell), A100) == each


@pytest.mark.parametrize("name", ["trtllm_fp4_block_scale_moe", "flashinfer:trtllm"])
def test_functions_of_flashinfer_that_are_no_implementations_are_refused_by_name(name):
    words = rf"moe_matmul={name} is a function of FlashInfer, which .* than SM10x and SM12x, .*here there"
    with pytest.raises(KernelError, match=words):
        Kernels(H200, parse_pins(f"moe={name}"), Ledger())
    with pytest.raises(KernelError, match=rf"moe_matmul={name} is required, but it is a function of FlashInfer"):
        Kernels(H200, {}, Ledger(), required=parse_requirements(f"moe={name}"))
    with pytest.raises(
        KernelError, match=r"trtllm_batch_decode_with_kv_cache is a .* flashinfer:fa2 are; here there"
    ):
        Kernels(H200, parse_pins("attention=trtllm_batch_decode_with_kv_cache"), Ledger())


def test_requirement_of_a_missing_library_names_what_is_possible(monkeypatch):
    monkeypatch.setattr(triton_kernels, "find_triton_kernels", lambda: None)
    required = parse_requirements("moe=triton_kernels")
    words = r"triton_kernels is required, but it needs the package .* brings it; here there is reference"
    with pytest.raises(KernelError, match=words):
        Kernels(CPU, {}, Ledger(), required=required)
    with pytest.raises(KernelError, match=words):
        check_required(OpsSweep(spec=PRESETS["gpt-oss-20b"], ops=(moe_matmul,), ms=(1,)), CPU, required)


def test_requirement_of_a_library_is_pinned_if_one_of_its_variants_runs(monkeypatch):
    ready = {"flashinfer:fa3": capability(9, 0), "flashinfer:fa2": anywhere}
    for name, needs in ready.items():
        monkeypatch.setitem(attention.implementations, name, replace(attention.implementations[name], needs=needs))
    for name in ("flashinfer", "flashinfer:fa2"):
        with pytest.raises(KernelError, match=rf"would run: add --kernels attention={name}$"):
            attention.choose(A100, None, Ledger(), Requirement("attention", name))
        chosen = attention.choose(A100, name, Ledger(), Requirement("attention", name))
        assert [candidate.name for candidate in chosen.candidates] == ["flashinfer:fa2"]


def test_every_variant_of_a_library_says_why_it_cannot_run(monkeypatch):
    old, fine = replace(CPU, name="T4", capability=(7, 5)), lambda name: name
    package = LibraryPackage("flashinfer", "0.7.2", Path("absent"))
    monkeypatch.setattr(flashinfer, "find_flashinfer", lambda: package)
    monkeypatch.setattr(flashinfer.importlib.util, "find_spec", fine)
    monkeypatch.setattr(flashinfer.shutil, "which", fine)
    with pytest.raises(
        KernelError, match=r"=flashinfer cannot run here: flashinfer:fa3 is .*; flashinfer:fa2 is .*8.0 on"
    ):
        attention.choose(old, "flashinfer", Ledger())
