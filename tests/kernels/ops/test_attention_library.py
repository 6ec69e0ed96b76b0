"""Attention by FlashInfer, whose kernel a stand-in computes from what it was given: every sample, and refusals."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from firesteel.errors import KernelError
from firesteel.kernels.ledger import Ledger, Ran
from firesteel.kernels.libraries import flashinfer
from firesteel.kernels.libraries.package import LibraryPackage
from firesteel.kernels.ops import attention_library
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.attention_operands import AttentionOperands
from firesteel.kernels.proof.verify import Status, check_sample
from tests.kernels.libraries.stand_in import make_jit

CPU = torch.device("cpu")
SAMPLES = {sample.label: sample for sample in attention.make_samples(CPU)}
TAKEN = {label: sample for label, sample in SAMPLES.items() if "fp8" not in label}


class Wrapper:
    """Stands in for FlashInfer's wrapper: the reference, over the pages and lengths of the plan."""

    def __init__(self, workspace, *, window_left, **options):
        self.window = None if window_left < 0 else window_left + 1

    def plan(self, starts, ends, pages, last, heads, kv_heads, dim, page_size, **options):
        assert (heads, kv_heads, dim) == (64, 8, 64) and options["causal"]
        self.starts, self.pages, self.counts = starts.long(), pages, ends.diff().long()
        self.lens = (self.counts - 1) * page_size + last

    def run(self, q, kv_pages, sinks, scale, *, out):
        table = torch.zeros(len(self.counts), int(self.counts.max()), dtype=torch.int64)
        for row, pages in enumerate(self.pages.split(self.counts.tolist())):
            table[row, : len(pages)] = pages
        operands = AttentionOperands(
            q=q,
            k_pages=kv_pages[0],
            v_pages=kv_pages[1],
            page_table=table,
            query_starts=self.starts,
            kv_lens=self.lens,
            sinks=sinks,
            window=self.window,
            scale=scale,
        )
        out.copy_(attention.reference(operands))


@pytest.fixture(autouse=True)
def stand_in(monkeypatch, tmp_path):
    library = SimpleNamespace(BatchAttentionWithAttentionSinkWrapper=Wrapper, jit=make_jit())
    monkeypatch.setattr(flashinfer, "import_flashinfer", lambda: library)
    monkeypatch.setattr(flashinfer, "find_workspace", lambda device: None)
    monkeypatch.setattr(flashinfer, "find_flashinfer", lambda: LibraryPackage("flashinfer", "0.7.2", tmp_path))
    flashinfer.find_session.cache_clear()
    yield
    flashinfer.find_session.cache_clear()


@pytest.mark.parametrize("label", TAKEN)
def test_every_sample_is_computed_from_the_pages_and_lengths_that_are_planned(label):
    check = check_sample(attention, attention.implementations["flashinfer:fa2"], TAKEN[label])
    assert check.status is Status.PASSED, check.why


def test_rows_of_no_request_are_zero_and_calls_without_queries_plan_nothing():
    (operands,) = TAKEN["decode full"].args
    padded = replace(operands, q=torch.cat([operands.q, torch.full_like(operands.q, float("nan"))]))
    y = attention_library.run("fa3", padded)
    assert not y[len(operands.q) :].any() and torch.equal(y, attention.reference(padded))
    empty = replace(operands, query_starts=torch.zeros_like(operands.query_starts))
    assert not attention_library.run("fa3", empty).any()


def test_calls_of_other_lengths_can_be_planned_before_they_are_launched():
    plan = attention.implementations["flashinfer:fa3"].plan
    calls = [TAKEN[label].args[0] for label in ("prefill full", "decode full")]
    shorter = replace(calls[1], kv_lens=(calls[1].kv_lens - 3).clamp(min=1))
    launches = [plan(operands)() for operands in (*calls, shorter)]
    for operands, launch in zip((*calls, shorter), launches, strict=True):
        for _ in range(2):
            assert torch.equal(launch(), attention.reference(operands))


def test_calls_that_the_library_cannot_take_are_refused():
    (operands,), refuse = TAKEN["decode full"].args, attention_library.refuse
    assert refuse(operands) is None
    (stored,) = SAMPLES["decode full, fp8 pages with scales"].args
    assert "bf16 queries and pages" in refuse(stored)
    assert "values without a scale" in refuse(replace(operands, value_scale=2.0))
    assert "positive" in refuse(replace(operands, scale=-1.0))
    assert "heads of 64 values, not 32" in refuse(replace(operands, q=operands.q[..., :32]))
    assert "laid out alike" in refuse(replace(operands, v_pages=operands.v_pages.mT.contiguous().mT))


def test_nothing_is_planned_while_kernels_are_compiled_ahead(monkeypatch):
    monkeypatch.setattr(attention_library, "current_ahead", lambda: "ahead")
    monkeypatch.setattr(attention_library, "find_session", pytest.fail)
    (operands,) = TAKEN["decode full"].args
    assert attention_library.run("fa2", operands).shape == operands.q.shape


def test_capture_is_refused_by_the_call_too(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    (operands,) = TAKEN["decode full"].args
    on_gpu = SimpleNamespace(is_cuda=True, shape=operands.q.shape, dtype=operands.q.dtype, device=CPU)
    with pytest.raises(KernelError, match="--enforce-eager"):
        attention_library.run("fa2", replace(operands, q=on_gpu))


def test_ledger_names_the_module_and_the_library_but_no_profiler_s_kernel():
    ledger = Ledger()
    (operands,) = TAKEN["decode window"].args
    ledger.run(Ran("attention", "flashinfer:fa3"), attention_library.run, "fa3", operands)
    (entry,) = ledger.entries.values()
    ((launch, count),) = entry.launches.items()
    assert launch.kernel == "batch_prefill_attention_sink_bf16_swa_True_fa3" and count == 1
    assert launch.tile.startswith("flashinfer 0.7.2 at ") and ledger.launches() == {}
