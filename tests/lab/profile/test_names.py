"""Our kernels have the category of their op; bytes are counted once, for the kernel that reads them."""

from collections import defaultdict

import pytest

from firesteel.kernels.op.profile import (
    ATTENTION,
    DENSE,
    EXPERTS,
    MOE_OVERHEAD,
    MOVEMENT,
    NORM,
    QUANTISATION,
    SAMPLING,
)
from firesteel.kernels.registry import ALL_OPS
from firesteel.lab.profile.names import OTHER, classify, count_bytes, label_kernels
from firesteel.measure.roofline.roofline import StepShape, step_cost
from firesteel.model.spec import PRESETS

OPS = {
    "linear": DENSE,
    "decode_qkv": DENSE,
    "decode_o": DENSE,
    "decode_lm_head": DENSE,
    "moe_matmul": EXPERTS,
    "route": MOE_OVERHEAD,
    "decode_router": MOE_OVERHEAD,
    "decode_experts": EXPERTS,
    "decode_fc1": EXPERTS,
    "decode_fc2": EXPERTS,
    "attention": ATTENTION,
    "decode_attention": ATTENTION,
    "rope_kv_write": ATTENTION,
    "rms_norm": NORM,
    "rms_norm_fed": NORM,
    "quantize_mxfp8": QUANTISATION,
    "draw": SAMPLING,
    "decode_sample": SAMPLING,
}
# Launched by ops of two categories: most of their time belongs to this one.
OF_TWO = {"vector_kernel": DENSE, "tile_kernel": DENSE, "store_rows": QUANTISATION}


def kernels_of_ops():
    """Returns {kernel: ops that launch it}, for the GPUs that kernels are compiled for."""
    ops_of = defaultdict(set)
    for op in ALL_OPS:
        for capability in ((9, 0), (10, 0), (12, 1)):
            for code in op.make_device_code(capability):
                ops_of[code.kernel_name].add(op.name)
    return ops_of


def test_our_kernels_have_the_category_of_their_op():
    ops_of = kernels_of_ops()
    assert {name for name, ops in ops_of.items() if len({OPS[op] for op in ops}) > 1} == set(OF_TWO)
    beside = {name: category for op in ALL_OPS for name, category in op.profile.beside.items()}
    wanted = {name: OF_TWO.get(name) or beside.get(name) or OPS[min(ops)] for name, ops in ops_of.items()}
    assert {name: classify(name) for name in ops_of} == wanted


def test_ops_have_a_category_in_a_profile_of_a_cpu():
    assert {op.name: classify(op.name) for op in ALL_OPS} == OPS


def cost(**fields):
    return step_cost(PRESETS["gpt-oss-20b"], StepShape(context=128, **fields))


def bytes_of(cost, *reads):
    return sum(op.bytes for op in cost.ops if {op.op, f"{op.op}.{op.part}"} & set(reads))


@pytest.mark.parametrize("name", ["decode_experts", "decode_experts_even", "moe_stream", "moe_wgmma", "moe_matmul"])
def test_expert_kernel_reads_all_expert_bytes(name):
    by_kernel, by_category = count_bytes(label_kernels([name, "decode_router", "moe_sum", "moe_place"]), cost())
    assert by_kernel == {name: bytes_of(cost(), "moe_matmul"), "decode_router": bytes_of(cost(), "route")}
    assert by_category[EXPERTS] + by_category[MOE_OVERHEAD] == sum(by_kernel.values())


def test_kernel_of_one_product_reads_its_part():
    by_kernel, _ = count_bytes(label_kernels(["fc1", "fc2", "sum_parts", "place_chunk"]), cost())
    assert by_kernel == {"fc1": bytes_of(cost(), "moe_matmul.gate_up"), "fc2": bytes_of(cost(), "moe_matmul.down")}


def test_shared_kernel_belongs_to_the_router_if_another_multiplies_the_dense_layers():
    for others in (["tile_kernel"], ["nvjet_tst_128x64_NNT"]):
        assert label_kernels(["vector_kernel", *others])["vector_kernel"] == (MOE_OVERHEAD, ("route",))
    assert label_kernels(["tile_kernel", "void cutlass::Kernel2<gemm>"])["tile_kernel"].category == MOE_OVERHEAD
    by_kernel, by_category = count_bytes(label_kernels(["vector_kernel", "choose_kernel"]), cost())
    assert by_kernel["vector_kernel"] == by_category[DENSE] == bytes_of(cost(), "linear", "route")
    by_kernel, _ = count_bytes(label_kernels(["vector_kernel", "tile_kernel"]), cost())
    assert by_kernel == {"vector_kernel": bytes_of(cost(), "route"), "tile_kernel": bytes_of(cost(), "linear")}


def test_mxfp4_and_plain_layers_are_read_by_different_kernels():
    mixed = cost(mxfp4_layers=("lm_head",))
    by_kernel, _ = count_bytes(label_kernels(["mxfp4_linear_kernel", "tile_kernel", "vector_kernel"]), mixed)
    assert by_kernel["mxfp4_linear_kernel"] == bytes_of(mixed, "linear.lm_head")
    assert by_kernel["tile_kernel"] == bytes_of(mixed, "linear.qkv", "linear.o")


def test_shared_bytes_count_once_for_the_category_and_for_no_kernel():
    by_kernel, by_category = count_bytes(label_kernels(["decode_experts", "moe_stream"]), cost())
    assert not by_kernel and by_category[EXPERTS] == bytes_of(cost(), "moe_matmul")


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("fused_moe_kernel", EXPERTS),
        ("void vllm::moe::topkGatingSoftmax<float>", MOE_OVERHEAD),
        ("void marlin_moe_wna16::Marlin<...>", EXPERTS),
        ("void mul_mat_id_q<...>", EXPERTS),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1", EXPERTS),
        ("_p_matmul_ogs", EXPERTS),
        ("cutlass::device_kernel<GroupProblemShape, MainloopSm120ArrayTmaWarpSpecialized>", EXPERTS),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256", EXPERTS),
        ("nvjet_hsh_128x64_NNT", DENSE),
        ("nvjet_tst_64x8_64x16_2x1_v_bz_TNT", DENSE),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>", DENSE),
        ("void marlin::Marlin<nv_bfloat16>", DENSE),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", DENSE),
        ("aten::addmm", DENSE),
        ("flash_fwd_splitkv_kernel", ATTENTION),
        ("reshape_and_cache_flash_kernel", ATTENTION),
        ("rms_norm", NORM),
        ("void at::native::vectorized_elementwise_kernel<4>", NORM),
        ("decode_sample", SAMPLING),
        ("at::native::reduce_kernel<argmax>", SAMPLING),
        # These were attention, by "flash", or dense layers, by "marlin" and "gemv".
        ("void flashinfer::mxfp8_quantize_kernel<__nv_bfloat16>", QUANTISATION),
        ("void flashinfer::norm::RMSNormKernel<8, __nv_bfloat16>", NORM),
        ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<AttentionSink>", ATTENTION),
        ("void marlin::gptq_marlin_repack_kernel<256, 4, true>", MOVEMENT),
        ("void awq_marlin_moe_repack_kernel<4>", MOVEMENT),
        ("void gemv_fp4_kernel<4, 128>", EXPERTS),
        ("void mul_mat_q<(ggml_type)39, 128, false>", EXPERTS),
        ("void mul_mat_vec_q<(ggml_type)39, 1, true, false>", EXPERTS),
        ("void mul_mat_vec_q<(ggml_type)8, 1, false, false>", DENSE),
        ("quantize_mmq_mxfp4(float const*)", QUANTISATION),
        ("void tensorrt_llm::quantize_with_block_size<(BlockScaleQuantizationType)2, bf16, 32>", QUANTISATION),
        ("_downcast_to_mxfp", QUANTISATION),
        ("void vllm::rms_norm_static_fp8_quant_kernel<bf16>", NORM),
        ("void cutlass::device_kernel<MainloopSm120ArrayTmaBlockScaled, BlockScaleQuantization>", EXPERTS),
        ("void vllm::moe::moe_align_block_size_kernel<int>", MOE_OVERHEAD),
        ("void tensorrt_llm::finalizeMoeRoutingKernel<bf16>", MOE_OVERHEAD),
        ("_finalize_matmul_ogs", MOE_OVERHEAD),
        ("k_argsort_f32_i32", MOE_OVERHEAD),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>", MOVEMENT),
        ("void at::native::vectorized_gather_kernel<16, long>", MOVEMENT),
        ("void at::native::CatArrayBatchedCopy<bf16>", MOVEMENT),
        ("Memcpy HtoD (Pinned -> Device)", MOVEMENT),
        ("void k_get_rows_float<float>", MOVEMENT),
        ("void vllm::rotary_embedding_kernel<bf16>", ATTENTION),
        ("void flashinfer::activation::act_and_mul_kernel<bf16>", EXPERTS),
        ("mystery", OTHER),
    ],
)
def test_kernels_of_all_engines_have_a_category(name, category):
    assert classify(name) == category
