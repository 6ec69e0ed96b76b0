"""The build of FlashInfer for gpt-oss: which types and tiles are kept, and that other sources are not edited."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

import flashinfer_build

BINDING = (
    """#include "../../tvm_ffi_utils.h"
return std::make_unique<kernels::CutlassMoeFCRunner<TypeAct, TypeWeight, half, half, half, IsMXFPX>>();
return std::make_unique<kernels::CutlassMoeFCRunner<TypeAct, TypeWeight, half, TypeAct, half, IsMXFPX>>();
mKernelRunner =
    std::make_shared<kernels::CutlassMoeFCRunner<__nv_bfloat16, kernels::Fp4Type>>();
mKernelRunner = switch_output_type<__nv_fp8_e4m3, kernels::Fp4Type, true, false,
    kernels::Sm90Wfp4Afp8ScaleMode::kHummingPreMmaE8M0>(mOutputDtype);
"""
    + "mKernelRunner = std::make_shared<kernels::CutlassMoeFCRunner<half, half>>();\n" * 8
)


@dataclass
class Spec:
    """What FlashInfer says of a module that it would compile."""

    name: str
    build_dir: Path
    sources: list[Path]
    extra_cuda_cflags: list[str] = field(default_factory=list)
    extra_include_dirs: list[Path] = field(default_factory=list)


def write(folder, text):
    path = folder / "flashinfer_cutlass_fused_moe_binding.cu"
    path.write_text(text)
    return path


def test_runners_of_other_types_are_removed(tmp_path):
    text = flashinfer_build.edit_source(write(tmp_path, BINDING))
    assert (
        "CutlassMoeFCRunner<__nv_bfloat16, kernels::Fp4Type>" in text
        and "kHummingPreMmaE8M0>(mOutputDtype)" in text
    )
    assert "<half, half>" not in text and text.count("return nullptr;") == 2
    assert '#include "tvm_ffi_utils.h"' in text


def test_source_of_another_version_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="is not the source that is edited here: 2 and 2 places"):
        flashinfer_build.edit_source(
            write(tmp_path, BINDING.partition("std::make_shared<kernels::CutlassMoeFCRunner<half")[0])
        )


def test_other_sources_are_compiled_as_they_are(tmp_path):
    assert flashinfer_build.edit_source(tmp_path / "lora.cpp") is None


def make_operation(tile, cluster=(1, 1, 1), schedule="Cooperative", kind="warp_specialized"):
    return SimpleNamespace(
        cta_shape=tile,
        cga_shape=cluster,
        mainloop_schedule=SimpleNamespace(name=f"TmaWarpSpecialized{schedule}"),
        sm90_mixed_input_kernel_type=kind,
    )


def test_tile_by_which_the_workspace_is_sized_is_kept():
    assert flashinfer_build.is_chosen(make_operation((128, 64, 256)))


def test_all_other_tiles_fit_the_weights_of_gpt_oss():
    """2944 columns, and 5888 or 2944 rows: FlashInfer passes over tiles that do not divide them."""
    tiles = set(flashinfer_build.TILES) - {flashinfer_build.WORKSPACE_TILE}
    assert all(5888 % rows == 0 and 2944 % columns == 0 for rows, _, columns in tiles)
    for rows in (5888, 2944):
        assert {tokens for tile_rows, tokens, _ in tiles if rows % tile_rows == 0} == {16, 32, 64, 128, 256}


@pytest.mark.parametrize(
    "operation",
    [
        make_operation((128, 64, 256), cluster=(2, 2, 1)),
        make_operation((128, 64, 256), schedule="Pingpong"),
        make_operation((64, 16, 128)),
        make_operation((64, 16, 256), schedule="Pingpong"),
        make_operation((128, 128, 512), schedule="Pingpong"),
        make_operation((128, 16, 128), schedule="Pingpong", kind="single_warpgroup_prefill"),
    ],
)
def test_other_tiles_are_left_out(operation):
    assert not flashinfer_build.is_chosen(operation)


@pytest.mark.parametrize(("part", "names"), [("moe", ["fused_moe_90"]), ("moe-h20", ["fused_moe_90_h20"])])
@pytest.mark.parametrize("is_on_h20", [True, False])
def test_module_of_the_experts_is_for_the_named_gpu_whatever_is_at_hand(
    part, names, is_on_h20, tmp_path, monkeypatch
):
    module = SimpleNamespace(_should_enable_sm90_moe_prebuilt_d_descriptor=lambda: is_on_h20)

    def generate():
        name = "fused_moe_90" + "_h20" * module._should_enable_sm90_moe_prebuilt_d_descriptor()
        return Spec(name, tmp_path, [tmp_path / "lora.cpp"])

    module.gen_cutlass_fused_moe_sm90_module = generate
    monkeypatch.setitem(sys.modules, "flashinfer.jit", SimpleNamespace(fused_moe=module))
    monkeypatch.setattr(flashinfer_build, "write_matmuls", lambda folder: [])
    assert [spec.name for spec in flashinfer_build.PARTS[part]()] == names


def test_h20_is_built_only_if_it_is_named(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(__version__="0.7.2"))
    for part in list(flashinfer_build.PARTS):
        monkeypatch.setitem(flashinfer_build.PARTS, part, lambda part=part: asked.append(part) or [])
    monkeypatch.setattr("sys.argv", ["flashinfer_build.py", str(tmp_path)])
    flashinfer_build.main()
    assert asked == ["moe", "attention", "quantizer"]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["folder", "gemm"]])
def test_wrong_arguments_show_how_to_call_it(arguments, monkeypatch):
    monkeypatch.setattr("sys.argv", ["flashinfer_build.py", *arguments])
    with pytest.raises(SystemExit, match="FOLDER"):
        flashinfer_build.main()


@pytest.mark.parametrize(("version", "is_taken"), [("0.7.2", True), ("0.7.2.post1", True), ("0.7.3", False)])
def test_versions_whose_sources_were_read_are_taken(version, is_taken, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(__version__=version))
    monkeypatch.setitem(flashinfer_build.PARTS, "moe", list)
    monkeypatch.setattr("sys.argv", ["flashinfer_build.py", str(tmp_path), "moe"])
    if is_taken:
        flashinfer_build.main()
    else:
        with pytest.raises(SystemExit, match=r"for FlashInfer 0\.7\.2 and 0\.7\.2\.post1, not 0\.7\.3"):
            flashinfer_build.main()
