"""Sizes and tensors of the cache, with faked memory sizes."""

from dataclasses import replace

import pytest
import torch

from firesteel.config import BatchConfig, CacheConfig
from firesteel.device import GIB, find_device
from firesteel.device.catalogue import CATALOGUE
from firesteel.device.host_memory import HostMemory
from firesteel.engine.cache import kv_cache
from firesteel.engine.cache.kv_cache import (
    CPU_SHARE,
    CacheError,
    count_pages,
    count_prompt_logits,
    draft_graph_bytes,
    find_dtype,
    find_layout,
    graph_bytes,
    new_cache,
    page_bytes,
    pair_layers,
    working_bytes,
)
from firesteel.engine.cache.page_tables import FULL, WINDOW
from firesteel.engine.step.step_sizes import GRAPH_BYTES
from firesteel.kernels.rope import RopeSpec
from firesteel.model.drafters.draft_sizes import DraftSizes
from firesteel.model.spec import PRESETS, ModelSpec

CPU = find_device("cpu")
GPU = replace(CPU, capability=(9, 0), name="a GPU", memory_bytes=141 * GIB)
SPEC = ModelSpec(
    num_layers=3,
    hidden_size=96,
    intermediate_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    num_experts=6,
    num_active=2,
    vocab_size=300,
    windows=(8, None, 8),
    rope=RopeSpec(theta=10000.0),
    max_context=64,
)
LARGE = PRESETS["gpt-oss-120b"]
BATCH = BatchConfig(max_num_seqs=64, page_size=64, max_num_batched_tokens=2048)


@pytest.fixture
def free(monkeypatch):
    def say(gib):
        monkeypatch.setattr(kv_cache, "available_bytes", lambda device: int(gib * GIB))

    return say


def count(spec=LARGE, device=GPU, batch=BATCH, reserve_gib=1.0, **cache):
    return count_pages(
        spec, device, batch, CacheConfig(**cache), max_context=spec.max_context, reserve_gib=reserve_gib
    )


def test_nth_window_and_nth_full_layer_share_their_tensors():
    cache = new_cache(replace(SPEC, num_layers=5, windows=(8, None, 8, None, 8)), 5, 16, CPU, torch.float32)
    for tensors in (cache.keys, cache.values):
        assert tensors[0] is tensors[1] and tensors[2] is tensors[3]
        assert len({id(tensor) for tensor in tensors}) == 3
        assert {(tuple(tensor.shape), tensor.dtype) for tensor in tensors} == {((5, 2, 16, 32), torch.float32)}
    assert len({tensor.data_ptr() for tensor in (*cache.keys, *cache.values)}) == 6


@pytest.mark.parametrize(
    ("windows", "numbers"),
    [((8, None, 8), [0, 0, 1]), ((None, None), [0, 1]), ((8, 8), [0, 1]), ((None, 8, 8, None), [0, 0, 1, 1])],
)
def test_layers_are_paired_in_any_order(windows, numbers):
    assert pair_layers(replace(SPEC, num_layers=len(windows), windows=windows)) == numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("windows", [(8, None, 8), (None, None, None)])
def test_page_bytes_are_those_of_the_tensors(dtype, windows):
    spec = replace(SPEC, windows=windows)
    cache = new_cache(spec, 7, 16, CPU, dtype)
    tensors = {tensor.data_ptr(): tensor.nbytes for tensor in (*cache.keys, *cache.values)}
    assert sum(tensors.values()) == 7 * page_bytes(spec, 16, dtype)


def test_page_of_the_large_model_takes_2_25_mib_in_bf16_and_half_in_fp8():
    assert page_bytes(LARGE, 64, torch.bfloat16) == 18 * 2 * 8 * 64 * 64 * 2 == 2359296
    assert page_bytes(LARGE, 64, torch.float8_e4m3fn) == 2359296 // 2


def test_requested_size_is_used(free):
    free(80)
    assert count(kv_cache_gib=2.25) == 1024
    assert count(kv_cache_gib=2.25, kv_dtype="fp8") == 2048


def test_size_beyond_free_memory_is_refused(free):
    free(10)
    with pytest.raises(CacheError, match=r"kv_cache_gib = 10\.5: only 10\.0 GiB of memory are free; lower it"):
        count(kv_cache_gib=10.5)


def test_gpu_cache_is_free_memory_without_the_reserve_and_the_needs_of_a_step(free):
    free(75)
    bytes_per_page = page_bytes(LARGE, 64, torch.bfloat16)
    left = 75 * GIB - count(reserve_gib=3.0) * bytes_per_page
    needed = 3 * GIB + working_bytes(LARGE, BATCH) + graph_bytes(LARGE, BATCH, LARGE.max_context)
    assert needed <= left < needed + bytes_per_page
    assert count(reserve_gib=3.0) - count(reserve_gib=5.25) == 1024


def test_drafting_steps_are_given_their_graphs_and_the_logits_of_the_largest(free):
    free(75)
    sizes = DraftSizes(7, 64, is_one_pass=True)
    taken = draft_graph_bytes(LARGE, sizes)
    assert taken == 12 * GRAPH_BYTES + 4 * 32 * 7 * LARGE.vocab_size
    with_them = count_pages(
        LARGE,
        GPU,
        BATCH,
        CacheConfig(),
        max_context=LARGE.max_context,
        reserve_gib=1.0,
        draft_sizes=sizes,
    )
    whole = taken // page_bytes(LARGE, 64, torch.bfloat16)
    assert whole <= count(reserve_gib=1.0) - with_them <= whole + 1


def test_steps_that_verify_drafts_of_few_requests_are_given_their_rows(free):
    """With --max-num-seqs 1 and drafts, steps of up to eight rows were captured in memory for steps of one."""
    one = replace(BATCH, max_num_seqs=1)
    more = graph_bytes(LARGE, one, 131072, 8) - graph_bytes(LARGE, one, 131072)
    assert more == 7 * 3 * GRAPH_BYTES + 4 * 7 * LARGE.vocab_size * 4
    free(10)
    asked = {"max_context": LARGE.max_context, "reserve_gib": 1.0}
    plain, drafting = (count_pages(LARGE, GPU, one, CacheConfig(), **asked, most_rows=rows) for rows in (1, 8))
    assert drafting < plain


def test_step_of_the_large_model_is_given_a_gigabyte_or_two_growing_with_its_tokens():
    assert GIB < working_bytes(LARGE, BATCH) < 2 * GIB
    more = replace(BATCH, max_num_batched_tokens=8192)
    assert GIB < working_bytes(LARGE, more) - working_bytes(LARGE, BATCH) < 2 * GIB


def test_step_of_a_small_vocabulary_is_not_given_more_logits_than_its_tokens_have():
    """A quarter GiB of them, four times, left no room for a cache in a small container."""
    small = replace(LARGE, vocab_size=1000)
    rows = 4 * 1000 * 4 * (BATCH.max_num_seqs + BATCH.max_num_batched_tokens)
    logits_of_large = 4 * (BATCH.max_num_seqs * LARGE.vocab_size * 4 + (GIB >> 2))
    assert working_bytes(LARGE, BATCH) - working_bytes(small, BATCH) == logits_of_large - rows


def test_graphs_are_given_two_gigabytes_growing_with_their_requests_and_tokens():
    assert GIB < graph_bytes(LARGE, BATCH, 131072) < 2 * GIB
    logits = 4 * BATCH.max_num_seqs * LARGE.vocab_size * 4
    more = replace(BATCH, max_num_seqs=2 * BATCH.max_num_seqs)
    assert logits < graph_bytes(LARGE, more, 131072) - graph_bytes(LARGE, BATCH, 131072) < 2 * logits
    fewer = replace(BATCH, max_num_batched_tokens=64)
    assert graph_bytes(LARGE, fewer, 131072) < graph_bytes(LARGE, BATCH, 131072) / 1.5
    assert graph_bytes(LARGE, BATCH, 4096) < graph_bytes(LARGE, BATCH, 131072)


def test_prompt_logits_of_a_step_take_a_quarter_gibibyte():
    assert count_prompt_logits(LARGE) == 333
    assert count_prompt_logits(replace(SPEC, vocab_size=1 << 30)) == 1


def test_unified_memory_is_read_from_the_system(monkeypatch):
    monkeypatch.setattr("firesteel.device.find_host_memory", lambda: HostMemory(120 * GIB, 20 * GIB))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 * GIB, 120 * GIB))
    shared = count(device=replace(GPU, is_unified=True))
    assert shared * page_bytes(LARGE, 64, torch.bfloat16) < 19 * GIB
    assert count() > 4 * shared


def test_cpu_takes_a_modest_share_of_free_memory(free):
    free(24)
    assert count(device=CPU) == 24 * GIB // CPU_SHARE // page_bytes(LARGE, 64, torch.float32)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_cache_is_at_most_twice_what_all_sequences_need(free, device):
    free(100)
    batch = BatchConfig(page_size=16, max_num_seqs=3)
    assert count(SPEC, device, batch) == 2 * 3 * (64 // 16 + 2)


def test_too_little_memory_is_an_error_that_says_what_to_do(free):
    free(0.5)
    with pytest.raises(CacheError, match=r"room for 0 pages of 2359296 bytes, at least 2 are needed \(0\.5 GiB"):
        count()
    with pytest.raises(CacheError, match="raise --kv-cache-gib"):
        count(kv_cache_gib=0.001)


@pytest.mark.parametrize(
    ("name", "device", "dtype"),
    [
        ("auto", CPU, torch.float32),
        ("auto", GPU, torch.bfloat16),
        ("bf16", CPU, torch.bfloat16),
        ("fp8", CPU, torch.float8_e4m3fn),
        ("fp8", GPU, torch.float8_e4m3fn),
    ],
)
def test_auto_stores_the_computed_type(name, device, dtype):
    assert find_dtype(name, device) == dtype


def test_only_fp8_counts_saturated_values():
    assert new_cache(SPEC, 2, 16, CPU, torch.bfloat16).saturated is None
    assert new_cache(SPEC, 2, 16, CPU, torch.float8_e4m3fn).saturated.tolist() == [0]


@pytest.mark.parametrize(
    ("windows", "kinds", "window"),
    [((8, None, 8), (FULL, WINDOW), 8), ((None,) * 3, (FULL,), 0), ((8, 8, 5), (WINDOW,), 8)],
)
def test_layout_has_the_kinds_of_layers_that_exist(windows, kinds, window):
    layout = find_layout(replace(SPEC, windows=windows), 16)
    assert (layout.kinds, layout.window, layout.page_size) == (kinds, window, 16)


UNIFIED = CATALOGUE["gb10"]
SERVED = BatchConfig(max_num_seqs=128, page_size=64, max_num_batched_tokens=4096)


def test_pages_on_unified_memory_are_no_more_than_four_full_requests_need(free):
    free(58)
    pages = count(device=UNIFIED, batch=SERVED, reserve_gib=12.0)
    assert pages == 4 * find_layout(LARGE, 64).count_pages(LARGE.max_context)
    taken = pages * page_bytes(LARGE, 64, torch.bfloat16) + working_bytes(LARGE, SERVED)
    assert 58 - taken / GIB > 12 + graph_bytes(LARGE, SERVED, LARGE.max_context) / GIB
    assert count(batch=SERVED, reserve_gib=12.0) > pages  # a GPU with memory of its own


def test_pages_on_full_unified_memory_leave_the_reserve(free):
    free(24)
    pages = count(device=UNIFIED, batch=SERVED, reserve_gib=12.0)
    taken = pages * page_bytes(LARGE, 64, torch.bfloat16) + working_bytes(LARGE, SERVED)
    taken += graph_bytes(LARGE, SERVED, LARGE.max_context)
    assert 24 - taken / GIB >= 12 and pages > 0


def test_requested_pages_must_leave_the_reserve_of_unified_memory(free):
    free(58)
    assert count(device=UNIFIED, batch=SERVED, reserve_gib=12.0, kv_cache_gib=45.0) > 0
    with pytest.raises(
        CacheError, match=r"kv_cache_gib = 47: 58.0 GiB .* the host keeps 12.0: lower it or --memory"
    ):
        count(device=UNIFIED, batch=SERVED, reserve_gib=12.0, kv_cache_gib=47.0)
    assert count(batch=SERVED, reserve_gib=12.0, kv_cache_gib=47.0) > 0
