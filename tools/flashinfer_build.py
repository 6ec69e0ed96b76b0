"""Compiles what gpt-oss needs of FlashInfer for Hopper, ahead of time and without a GPU.

python tools/flashinfer_build.py FOLDER [moe] [moe-h20] [attention] [quantizer] [--jobs N]

FlashInfer compiles a module at its first call: 248 files for the experts, 10 for each of four attention variants.
This leaves out the types and tiles that gpt-oss does not use, and writes FOLDER/NAME/NAME.so, which FlashInfer
loads instead of compiling if FOLDER is `data/aot` of its package. Tiles that were left out raise when they are
chosen; masks other than the causal one end the process. An H20 loads another module of the experts than other
Hopper GPUs, moe-h20, which is built only if it is named. Needs the package flashinfer-python 0.7.2 or 0.7.2.post1,
nvcc, ninja and the headers of cuRAND. A file of four matmuls takes about three minutes of a core and 9 GB.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

VERSIONS = ("0.7.2", "0.7.2.post1")  # their sources of these modules are the same
TARGET = "9.0a"
PER_FILE = 4  # matmuls: a file costs as much as three of them
HEAD_DIM = 64
ONE, ROWS, TOKENS = (1, 1, 1), (2, 1, 1), (1, 2, 1)  # clusters: alone, two strips of weights, two of tokens
WORKSPACE_TILE = (128, 64, 256)  # by which FlashInfer sizes its workspace; it does not run
# Rows of weights, tokens and columns of a tile -> clusters. gpt-oss has 2944 columns, which 256 does not divide.
TILES = {
    WORKSPACE_TILE: (ONE,),
    (64, 16, 128): (ONE,),
    (64, 32, 128): (ONE,),
    (64, 64, 128): (ONE,),
    (128, 16, 128): (ONE,),
    (128, 32, 128): (ONE,),
    (128, 64, 128): (ONE,),
    (128, 128, 128): (ONE, ROWS, TOKENS),
    (128, 256, 128): (ONE, ROWS),
    (256, 128, 128): (ONE, TOKENS),
}
SMALL_TOKENS = (8, 16, 32, 40, 64)  # of the kernels of one warpgroup, which are for FP8 activations
RUNNERS = ("__nv_bfloat16, kernels::Fp4Type", "__nv_fp8_e4m3, kernels::Fp4Type, true, false")
KEPT = (
    "binding|deepgemm|blockscale|instantiation.cu|mixed_utils|ized_input|bf16_fp4|fp8_fp4|/common/|preQuant|"
    "heuristic|lora"
)
INSTANTIATIONS = """#include "cutlass_fused_moe_kernels.cuh"
#include "moe_kernels.h"
namespace tensorrt_llm::kernels::cutlass_kernels {
template class CutlassMoeFCRunner<__nv_bfloat16, Fp4Type>;
template class CutlassMoeFCRunner<__nv_fp8_e4m3, Fp4Type, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, false,
                                  Sm90Wfp4Afp8ScaleMode::kHummingPreMmaE8M0>;
INSTANTIATE_FINALIZE_MOE_ROUTING(__nv_bfloat16, __nv_bfloat16, __nv_bfloat16);
}
"""
MATMULS = """#include "moe_gemm_template_dispatch.h"
namespace tensorrt_llm::kernels::cutlass_kernels {
template class MoeGemmRunner<__nv_fp8_e4m3, Fp4Type, __nv_bfloat16, __nv_bfloat16, false,
                             Sm90Wfp4Afp8ScaleMode::kHummingPreMmaE8M0>;
}
"""
LAUNCHER = "tensorrt_llm/kernels/cutlass_kernels/moe_gemm/launchers/moe_gemm_tma_ws_mixed_input_launcher"
ABSENT = (
    f'#include "{LAUNCHER}.h"'
    + """
#include "cutlass/epilogue/dispatch_policy.hpp"
#include "cutlass_extensions/epilogue_helpers.h"
#include "tensorrt_llm/common/assert.h"
namespace tensorrt_llm::kernels::cutlass_kernels_oss {
using SafeFP4 = tensorrt_llm::kernels::cutlass_kernels::Fp4Type;
template <typename T, typename W, typename O, typename E, typename C, typename G, typename M, typename P,
          cutlass::WeightOnlyQuantOp Q, cutlass::gemm::collective::MixedInputScaleMode S>
void sm90_generic_mixed_moe_gemm_kernelLauncher(GroupedGemmInput<T, W, O, O>, TmaWarpSpecializedGroupedGemmInput,
                                                int, size_t*) {
  TLLM_THROW("this tile was left out of the build");
}
template <typename T, typename W, typename O, typename E, typename C, typename G, typename M, typename P,
          cutlass::WeightOnlyQuantOp Q, cutlass::gemm::collective::MixedInputScaleMode S,
          tensorrt_llm::cutlass_extensions::MainloopScheduleType K>
void sm90_generic_mixed_moe_small_k_kernelLauncher(GroupedGemmInput<T, W, O, O>, TmaWarpSpecializedGroupedGemmInput,
                                                   int, size_t*) {
  TLLM_THROW("this tile was left out of the build");
}
"""
)


def main() -> None:
    arguments = sys.argv[1:]
    jobs = "2"
    if "--jobs" in arguments:
        place = arguments.index("--jobs")
        jobs = arguments[place + 1]
        del arguments[place : place + 2]
    if not arguments or arguments[0].startswith("-") or not set(arguments[1:]) <= set(PARTS):
        sys.exit(__doc__)
    os.environ.update(FLASHINFER_CUDA_ARCH_LIST=TARGET, MAX_JOBS=jobs)
    import flashinfer

    if flashinfer.__version__ not in VERSIONS:
        sys.exit(
            f"this is for FlashInfer {' and '.join(VERSIONS)}, not {flashinfer.__version__}: its sources are "
            "edited by their text"
        )
    for spec in [spec for part in arguments[1:] or USUAL for spec in PARTS[part]()]:
        began = time.monotonic()
        spec.build(verbose=True)
        kept = Path(arguments[0]) / spec.name / f"{spec.name}.so"
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(spec.jit_library_path, kept)
        subprocess.run(["strip", str(kept)], check=True)
        took, size = time.monotonic() - began, kept.stat().st_size / 1e6
        print(f"{spec.name}: {len(spec.sources)} files, {took:.0f} s, {size:.1f} MB", flush=True)


def cut_moe(is_h20: bool = False) -> Iterator[Any]:
    """Yields the module of the experts: MXFP4 weights with bf16 or FP8 activations."""
    from flashinfer.jit import fused_moe

    fused_moe._should_enable_sm90_moe_prebuilt_d_descriptor = lambda: is_h20  # it would ask the GPU at hand
    spec = fused_moe.gen_cutlass_fused_moe_sm90_module()
    edited = spec.build_dir / "sources"
    edited.mkdir(parents=True, exist_ok=True)
    sources = [path for path in spec.sources if "generated" not in path.parts and re.search(KEPT, str(path))]
    folders = {path.parent for path in sources}  # of headers that edited sources include by their name
    for place, path in enumerate(sources):
        if (text := edit_source(path)) is not None:
            sources[place] = edited / path.name
            write(sources[place], text)
    flags = [flag for flag in spec.extra_cuda_cflags if flag != "-DENABLE_FP8_BLOCK_SCALE"]
    yield replace(
        spec,
        sources=[*sources, *write_matmuls(edited)],
        extra_cuda_cflags=flags,
        extra_include_dirs=[*spec.extra_include_dirs, *sorted(folders)],
    )


def edit_source(path: Path) -> str | None:
    """Returns the text of a source without the types that are left out, or None if it has none of them."""
    if path.name == "cutlass_fused_moe_instantiation.cu":
        return INSTANTIATIONS
    if path.name == "moe_gemm_kernels_fp8_fp4.cu":
        return MATMULS
    if path.name != "flashinfer_cutlass_fused_moe_binding.cu":
        return None
    text = path.read_text().replace('"../../tvm_ffi_utils.h"', '"tvm_ffi_utils.h"')
    makes = re.compile(
        r"mKernelRunner\s*=\s*(?:std::make_\w+<\s*kernels::CutlassMoeFCRunner<|switch_output_type<)[^;]*;"
    )
    text, removed = makes.subn(lambda match: match[0] if _is_kept(match[0]) else ";", text)
    halves = re.compile(r"return std::make_unique<kernels::CutlassMoeFCRunner<TypeAct, TypeWeight, half,[^;]*;")
    text, without = halves.subn("return nullptr;", text)
    if removed < 10 or without != 2:
        sys.exit(f"{path} is not the source that is edited here: {removed} and {without} places found")
    return text


def _is_kept(statement: str) -> bool:
    statement = re.sub(r"\s+", " ", statement)
    return any(f"<{types}" in statement for types in RUNNERS)


def write_matmuls(folder: Path) -> list[Path]:
    """Writes the matmuls of the chosen tiles, a few to a file, and one file that stands for all others."""
    from flashinfer.jit.gemm.cutlass import generate_kernels as generator

    every = [
        operation
        for operation in generator.generate_sm90_mixed_type_grouped_gemm_operations(True)
        if generator.CudaTypeName[operation.weight_type] == "SafeFP4"
        and generator.CudaTypeName[operation.output_type] == "__nv_bfloat16"
    ]
    chosen = [operation for operation in every if is_chosen(operation)]
    paths = []
    for act_type in dict.fromkeys(operation.act_type for operation in chosen):
        group = [operation for operation in chosen if operation.act_type == act_type]
        for first in range(0, len(group), PER_FILE):
            path = folder / f"matmuls_{generator.DataTypeNames[act_type]}_{first // PER_FILE}.cu"
            generator.write_file([f"{LAUNCHER}.inl"], group[first : first + PER_FILE], str(path))
            paths.append(path)
    others = [generator.instantiate_operation(operation) for operation in every if operation not in chosen]
    write(folder / "matmuls_absent.cu", ABSENT + "".join(others) + "}\n")
    print(f"{len(chosen)} of {len(every)} matmuls in {len(paths)} files", flush=True)
    return [*paths, folder / "matmuls_absent.cu"]


def is_chosen(operation: Any) -> bool:
    tile, cluster = tuple(operation.cta_shape), tuple(operation.cga_shape)
    if operation.sm90_mixed_input_kernel_type != "warp_specialized":  # the other kind is for at most 384 columns
        return operation.sm90_mixed_input_kernel_type.endswith("rolling") and tile[1] in SMALL_TOKENS
    schedule = "Pingpong" if tile[0] < 128 else "Cooperative"  # the one that FlashInfer lists for a tile
    return cluster in TILES.get(tile, ()) and operation.mainloop_schedule.name.endswith(schedule)


def cut_attention() -> Iterator[Any]:
    """Yields attention with sinks over pages, causal, full and with a window, for both backends."""
    import torch
    from flashinfer.jit.attention.modules import gen_customize_batch_prefill_module
    from flashinfer.jit.attention.variants import attention_sink_decl

    bf16 = torch.bfloat16
    for backend in ("fa3", "fa2"):
        for has_window in (False, True):
            name = f"batch_prefill_attention_sink_bf16_swa_{has_window}_{backend}"
            spec = gen_customize_batch_prefill_module(
                *(backend, name, bf16, bf16, bf16, torch.int32, HEAD_DIM, HEAD_DIM),
                *(["sink"], ["float"], ["sm_scale"], ["double"], "AttentionSink", attention_sink_decl[backend]),
                use_sliding_window=has_window,
                paged_kv_stride_mode="independent" if backend == "fa2" else "runtime",
            )
            sources = [path for path in spec.sources if not re.search("ragged|mask_[023]", path.name)]
            yield replace(spec, sources=sources, extra_ldflags=[*(spec.extra_ldflags or ()), "-Wl,-z,lazy"])


def make_quantizer() -> Iterator[Any]:
    from flashinfer.jit.fp4_quantization import gen_fp4_quantization_sm90_module

    yield gen_fp4_quantization_sm90_module()


def write(path: Path, text: str) -> None:
    """Writes a file unless it has this text already, so that ninja keeps what was compiled."""
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)


PARTS = {
    "moe": cut_moe,
    "moe-h20": functools.partial(cut_moe, is_h20=True),
    "attention": cut_attention,
    "quantizer": make_quantizer,
}
USUAL = ("moe", "attention", "quantizer")  # what is built unless parts are named

if __name__ == "__main__":
    main()
