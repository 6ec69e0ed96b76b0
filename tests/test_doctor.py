"""Findings of the doctor on made-up machines, and the output of its command on this one."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from firesteel import doctor
from firesteel.cli import app
from firesteel.device import GIB, DeviceSpec
from firesteel.doctor import PACKAGES, Finding, FindingStatus, MachineFacts, driver_version, judge
from firesteel.kernels.cuda.compile import lacks_nvrtc
from firesteel.kernels.libraries.package import describe_libraries
from firesteel.kernels.registry import NETWORK_OPS
from firesteel.vllm_plugin.refusal.state import PluginState
from firesteel.vllm_plugin.refusal.versions import judge_version

HEADER = Path(__file__)  # any file that exists
NO_HEADER = HEADER / "Python.h"
GPU = DeviceSpec(
    torch_device=torch.device("cuda:0"),
    name="GB10",
    capability=(12, 1),
    num_sms=48,
    l2_bytes=24 << 20,
    memory_bytes=120 * GIB,
    is_unified=True,
)
CPU = DeviceSpec(
    torch_device=torch.device("cpu"),
    name="CPU",
    capability=None,
    num_sms=0,
    l2_bytes=0,
    memory_bytes=32 * GIB,
    is_unified=False,
)
GOOD = MachineFacts(
    python=(3, 12),
    torch="2.14.0+cu130",
    torch_cuda="13.0",
    triton="3.8.0",
    driver="580.95.05",
    device=GPU,
    available_bytes=100 * GIB,
    compiler="/usr/bin/cc",
    python_header=HEADER,
    cuda_bindings="13.3.1",
    nvrtc="13.0",
    nvrtc_architectures=(80, 90, 100, 120, 121),
    lacks_nvrtc=None,
)
PLAIN = MachineFacts(
    python=(3, 11),
    torch="2.13.0+cpu",
    torch_cuda=None,
    triton=None,
    driver=None,
    device=CPU,
    available_bytes=16 * GIB,
    compiler=None,
    python_header=NO_HEADER,
    cuda_bindings=None,
    nvrtc=None,
    nvrtc_architectures=(),
    lacks_nvrtc="needs cuda.bindings: pip install cuda-bindings",
)


def changed(machine, **facts):
    return dataclasses.replace(machine, **facts)


def card(capability):
    return dataclasses.replace(GPU, name="card", capability=capability, is_unified=False)


def failures(machine):
    return {finding.check: finding for finding in judge(machine) if finding.status is FindingStatus.FAIL}


def found(machine, check):
    return next(finding for finding in judge(machine) if finding.check == check)


def test_good_gpu_machine_has_no_failures():
    assert {finding.status for finding in judge(GOOD)} == {FindingStatus.OK}


def test_machine_without_gpu_compiler_headers_or_triton_gets_notes_only():
    findings = judge(PLAIN)
    assert {finding.check for finding in findings if finding.status is FindingStatus.NOTE} == {
        "Triton",
        "CUDA",
        "GPU",
        "C compiler",
        "Python headers",
        "NVRTC and cuda.bindings",
    }
    assert failures(PLAIN) == {}


@pytest.mark.parametrize("capability", [(12, 0), (12, 1)])
@pytest.mark.parametrize("triton", ["3.7.1", "3.6.0"])
def test_sm12x_with_old_triton_fails_and_the_cure_names_torch(capability, triton):
    machine = changed(GOOD, torch="2.13.0", triton=triton, device=card(capability))
    finding = failures(machine)["Triton"]
    assert "torch>=2.14" in finding.cure and triton in finding.found


@pytest.mark.parametrize("triton", ["3.8.0", "3.10.0", "3.8.0+git1234"])
def test_sm12x_with_triton_3_8_or_later_is_fine(triton):
    assert "Triton" not in failures(changed(GOOD, triton=triton))


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
def test_old_triton_is_fine_on_other_gpus(capability):
    machine = changed(GOOD, torch="2.12.1", triton="3.7.0", device=card(capability))
    assert failures(machine) == {}


def test_gpu_without_triton_fails():
    assert "pip install triton" in failures(changed(GOOD, triton=None))["Triton"].cure


@pytest.mark.parametrize(
    ("torch_version", "triton"), [("2.14.0", "3.9.0"), ("2.11.0", "3.8.1"), ("2.15.0", "3.8.0")]
)
def test_mispaired_torch_and_triton_fail_and_the_cure_names_the_pair(torch_version, triton):
    machine = changed(GOOD, torch=torch_version, triton=triton)
    finding = failures(machine)["torch and Triton"]
    wanted = {"2.14.0": "3.8", "2.11.0": "3.6", "2.15.0": "3.9"}[torch_version]
    assert finding.cure == f"pip install 'triton=={wanted}.*'"
    assert triton in finding.found


def test_torch_newer_than_the_table_of_pairs_is_a_note():
    assert found(changed(GOOD, torch="2.99.0"), "torch and Triton").status is FindingStatus.NOTE


def test_cpu_torch_needs_no_pair():
    assert found(changed(PLAIN, triton="3.1.0"), "torch and Triton").status is FindingStatus.OK


def test_driver_with_a_cpu_build_of_torch_fails():
    finding = failures(changed(PLAIN, driver="580.95.05"))["CUDA"]
    assert "CPU build" in finding.found and "580.95.05" in finding.found
    assert finding.cure == "install a CUDA build of torch"


def test_driver_with_a_torch_that_sees_no_gpu_fails():
    finding = failures(changed(PLAIN, driver="470.1", torch="2.14.0", torch_cuda="13.0"))["CUDA"]
    assert "sees no GPU" in finding.found and "nvidia-smi" in finding.cure and "CUDA 13.0" in finding.cure


def test_gpu_without_compiler_fails():
    assert failures(changed(GOOD, compiler=None))["C compiler"].cure == "install gcc"


def test_gpu_without_python_headers_fails():
    finding = failures(changed(GOOD, python_header=NO_HEADER))["Python headers"]
    assert str(NO_HEADER) in finding.found and finding.cure == "install python3-dev"


def in_vllm(machine, **fields):
    state = PluginState(version=judge_version("0.28.0"), words="vLLM 0.28.0", **fields)
    return changed(machine, vllm=state)


def test_active_plugin_is_fine_on_a_gpu_that_loses_nothing():
    machine = in_vllm(changed(GOOD, torch="2.13.0", triton="3.7.1", device=card((9, 0))), is_active=True)
    assert found(machine, "vLLM plugin") == Finding("vLLM plugin", FindingStatus.OK, "vLLM 0.28.0")
    assert failures(machine) == {}


def test_sm12x_in_vllm_is_told_what_the_plugin_cannot_do_and_not_to_change_vllms_torch():
    """No vLLM before 0.33 brings Triton 3.8, and a newer torch would break it."""
    machine = in_vllm(changed(GOOD, torch="2.13.0", triton="3.7.1"), is_active=True)
    for check in ("vLLM plugin", "Triton"):
        finding = found(machine, check)
        assert finding.status is FindingStatus.NOTE and "without vLLM" in finding.cure
    assert "native FP4 needs Triton 3.8, which vLLM brings from 0.33 on" in found(machine, "vLLM plugin").found


def test_sm12x_in_a_vllm_with_triton_3_8_is_told_how_prompts_use_native_fp4():
    """The plugin takes its activations from a variable; `firesteel serve` would choose them."""
    finding = found(in_vllm(GOOD, is_active=True), "vLLM plugin")
    assert finding.status is FindingStatus.NOTE and "FIRESTEEL_ACTIVATION=mxfp8" in finding.cure
    assert found(in_vllm(GOOD, is_active=True), "Triton").status is FindingStatus.OK


@pytest.mark.parametrize(("is_refused", "status"), [(True, FindingStatus.FAIL), (False, FindingStatus.NOTE)])
def test_plugin_that_does_not_run_is_shown_with_its_cure(is_refused, status):
    finding = found(in_vllm(GOOD, cure="do this", is_refused=is_refused), "vLLM plugin")
    assert (finding.status, finding.cure) == (status, "do this")


def test_versions_of_nvrtc_and_cuda_bindings_are_shown():
    assert found(GOOD, "NVRTC and cuda.bindings").found == "NVRTC 13.0, cuda-bindings 13.3.1"


@pytest.mark.parametrize(("capability", "fails"), [((8, 0), False), ((9, 0), True), ((12, 1), True)])
def test_gpu_with_cuda_kernels_fails_without_nvrtc_and_the_loss_is_named(capability, fails):
    why = "needs NVRTC, which cannot be loaded: pip install nvidia-cuda-nvrtc"
    machine = changed(GOOD, device=card(capability), torch="2.14.0", nvrtc=None, lacks_nvrtc=why)
    finding = found(machine, "NVRTC and cuda.bindings")
    assert finding.status is (FindingStatus.FAIL if fails else FindingStatus.NOTE)
    assert "decode steps of 1 to 8 requests" in finding.found and finding.cure == why


def test_nvrtc_that_does_not_support_the_gpu_fails():
    finding = failures(changed(GOOD, nvrtc="12.8", nvrtc_architectures=(90, 120)))["NVRTC and cuda.bindings"]
    assert "NVRTC 12.8" in finding.found and "sm_121" in finding.found and "newer" in finding.cure
    assert "NVRTC and cuda.bindings" not in failures(changed(GOOD, device=card((8, 6))))


@pytest.mark.parametrize(("python", "fails"), [((3, 9), True), ((3, 10), True), ((3, 11), False), ((4, 0), False)])
def test_python_before_3_11_fails(python, fails):
    assert ("Python" in failures(changed(GOOD, python=python))) == fails


@pytest.mark.parametrize(("torch_version", "fails"), [("2.9.1", True), ("2.10.0", True), ("2.11.0a0+git", False)])
def test_torch_before_2_11_fails(torch_version, fails):
    assert ("torch" in failures(changed(PLAIN, torch=torch_version))) == fails


def test_gpu_before_ampere_fails():
    assert "--device cpu" in failures(changed(GOOD, device=card((7, 5))))["GPU"].cure
    assert "GPU" not in failures(changed(GOOD, device=card((8, 0))))


def test_memory_is_shown_as_gathered_and_unified_memory_is_named():
    """The check once queried the real GPU, so it was wrong for a made-up one."""
    assert found(PLAIN, "memory").found == "16.0 GiB available of 32.0 GiB on CPU"
    assert found(changed(GOOD, device=card((9, 0))), "memory").found.startswith("100.0 GiB available of 120.0")
    assert "GB10" in found(GOOD, "unified memory, as the system counts it").found


def test_every_failure_has_a_cure():
    broken = changed(
        GOOD,
        python=(3, 8),
        torch="2.10.0",
        triton="3.4.0",
        compiler=None,
        python_header=NO_HEADER,
        device=card((7, 0)),
    )
    found_wrong = [*failures(broken).values(), *failures(changed(broken, triton=None, device=CPU)).values()]
    assert len({finding.check for finding in found_wrong}) >= 5
    assert all(finding.cure for finding in found_wrong)


@pytest.mark.parametrize(
    ("shipped", "status", "cure"),
    [
        ((HEADER, "gb10.json"), FindingStatus.OK, ""),
        ((None, "gb10.json was measured with triton 3.6.0"), FindingStatus.NOTE, "tune"),
    ],
)
def test_shipped_tiles_that_do_not_apply_are_a_warning_with_the_cure(monkeypatch, shipped, status, cure):
    monkeypatch.setattr(doctor, "find_shipped", lambda device: shipped)
    (finding,) = doctor.judge_tiles(GPU)
    assert (finding.status, finding.found) == (status, shipped[1]) and cure in finding.cure
    assert doctor.judge_tiles(CPU) == []


def test_driver_version_is_read_from_the_kernel_module(tmp_path):
    path = tmp_path / "version"
    path.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\nGCC version:\n"
    )
    assert driver_version(path) == "580.95.05"
    assert driver_version(tmp_path / "none") is None


def test_each_package_is_listed_with_its_import_location():
    findings = {finding.check: finding for finding in doctor.locate_packages()}
    libraries = [f"library {name}" for name in ("triton_kernels", "flashinfer")]
    assert list(findings) == [*(f"import {name}" for name in PACKAGES), *libraries]
    assert findings["library triton_kernels"].found == describe_libraries()["triton_kernels"]
    assert findings["import torch"].found == f"{torch.__version__} at {Path(torch.__file__).parent}"
    assert findings["import firesteel"].found.endswith(f" at {Path(doctor.__file__).parent}")


def test_missing_package_is_a_note(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("no_such_package",))
    assert doctor.locate_packages()[0] == Finding("import no_such_package", FindingStatus.NOTE, "not found")


def test_each_op_is_listed_with_its_implementation():
    findings = doctor.choices(CPU)
    assert [finding.check for finding in findings] == [f"op {op.name}" for op in NETWORK_OPS]
    assert all("reference" in finding.found and "CPU" in finding.found for finding in findings)


@pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
@pytest.mark.parametrize("status", FindingStatus)
def test_exit_code_is_1_exactly_if_something_failed(monkeypatch, status, as_json):
    findings = [
        Finding("one", FindingStatus.OK, "fine"),
        Finding("two", status, "[so so]", "do this"),
        Finding("x", FindingStatus.OK, ""),
    ]
    monkeypatch.setattr("firesteel.doctor.examine", lambda: findings)
    result = CliRunner().invoke(app, ["doctor", *(["--json"] if as_json else [])])
    assert result.exit_code == (1 if status is FindingStatus.FAIL else 0)
    for text in ("two", status.value, "[so so]", "do this"):
        assert text in result.stdout


def test_command_examines_this_machine():
    result = CliRunner().invoke(app, ["doctor", "--json"])
    findings = {finding["check"]: finding for finding in json.loads(result.stdout)}
    assert torch.__version__ in findings["torch"]["found"]
    nvrtc = findings["NVRTC and cuda.bindings"]
    assert (nvrtc["status"] == "ok") == (lacks_nvrtc() is None) and "cuda-bindings" in nvrtc["found"]
    assert {f"import {name}" for name in PACKAGES} | {f"op {op.name}" for op in NETWORK_OPS} < findings.keys()
    assert result.exit_code == any(finding["status"] == "fail" for finding in findings.values())
    assert CliRunner().invoke(app, ["doctor"]).stdout.count("GiB available") == 1
