"""The choice of drafting steps for the rows of a step, and equal drafts with and without padding."""

import pytest
import torch

from firesteel.config import BatchConfig, CacheConfig, KernelConfig, SpeculateConfig
from firesteel.device import GIB, find_device
from firesteel.engine.engine import Engine
from firesteel.engine.preparation import prepare
from firesteel.engine.speculate.kept_span import KeptSpan, PendingDrafts, split_spans
from firesteel.engine.step.step_store import FusedOps
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.measure.tokens.runs import draw_requests, run_together
from firesteel.model.decode_ops import DecodeOps
from firesteel.model.drafters.draft_sizes import DraftSize
from firesteel.model.gpt_oss import GptOss
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import Request, SamplingParams, Span
from tests.engine.arrivals import serve, tokens
from tests.engine.drafted_requests import always, make, make_requests
from tests.model.drafters.draft_plans import GPU_NETWORKS, GPU_TARGET, load_network
from tests.model.drafters.heads import Layout

SMALL = {
    "eagle3": Layout(
        hidden_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        draft_vocab=90,
        config={"eagle_aux_hidden_state_layer_ids": [0, 1, 3]},
    ),
    "dflash": {},
}


def kept(rows, held, first=0):
    token_ids = list(range(held + 1))
    request = Request(request_id="", token_ids=token_ids, params=SamplingParams())
    span = Span(
        request=request,
        token_ids=token_ids,
        start=held - rows,
        end=held,
        full_pages=list(range(30)),
        window_pages=list(range(30)),
        num_logits=0,
    )
    return KeptSpan(span, first)


def test_rows_know_their_followers_and_their_place():
    part = kept(3, 9, first=5)
    assert part.rows.tolist() == [5, 6, 7] and part.followers.tolist() == [7, 8, 9]
    assert part.head().rows.tolist() == [5, 6] and part.head().followers.tolist() == [7, 8]
    assert part.tail().rows.tolist() == [7] and part.tail().followers.tolist() == [9]


def test_last_row_of_a_long_span_is_drafted_from_in_a_step():
    spans = [kept(4, 9), kept(5, 9), kept(40, 40), kept(1, 3)]
    long, others = split_spans(spans, [0, 2, 0, 1], 4)
    assert [part.span.num_tokens for part in long] == [4, 40]
    assert {number: part.span.num_tokens for number, part in others.items()} == {0: 4, 1: 1, 3: 1}


def test_drafts_of_several_steps_come_back_in_the_order_of_the_spans():
    pending = PendingDrafts([2, 0, 1, 3])
    pending.add([0, 2], torch.tensor([[1, 2, 0], [3, 0, 0], [9, 9, 9]]))
    pending.add([1], torch.zeros(1, 0, dtype=torch.int64))
    pending.add([3], torch.tensor([[4, 5, 6, 7]]))
    assert pending.read() == [[1, 2], [], [3], [4, 5, 6]]


@pytest.fixture(scope="module", params=SMALL)
def drafter(request, llm, tmp_path_factory):
    return load_network(tmp_path_factory.mktemp("network"), SMALL[request.param], llm.model, llm.device)


@pytest.fixture
def new_engine(llm, drafter):
    def make_engine(*, eager=True, speculate=None, **batch):
        return make(
            llm, speculate=speculate or always(drafter.name), drafter=drafter, eager_draft_steps=eager, **batch
        )

    return make_engine


def watch(engine):
    """Returns a list to which all drafts that the engine verifies are added."""
    seen, find = [], engine.scheduler.find_drafts

    def find_drafts(jobs):
        seen.append([list(draft) for draft in find(jobs)])
        return seen[-1]

    engine.scheduler.find_drafts = find_drafts
    return seen


@pytest.mark.parametrize(
    "batch",
    [{}, {"max_num_seqs": 3}, {"max_num_batched_tokens": 7}, {"page_size": 16}, {"pages": 150}],
    ids=str,
)
def test_drafts_are_those_of_networks_run_op_by_op(new_engine, llm, batch):
    drafts, texts = {}, {}
    for eager in (False, True):
        engine = new_engine(eager=eager, **batch)
        drafts[eager] = watch(engine)
        texts[eager] = tokens(serve(engine, make_requests({})))
        told = engine.statistics().draft_steps()
        assert (told["replayed"] > 0) == eager == (told["no graphs"] == 0)
        most = batch.get("max_num_batched_tokens", 2048)
        assert (told["prompts"] > 0) == (eager and most > engine.drafts.padded.rows_each)
    assert texts[True] == texts[False] == tokens(serve(make(llm), make_requests({})))
    assert drafts[True] == drafts[False]
    assert len({str(draft) for step in drafts[True] for draft in step}) > 20


def test_many_requests_are_drafted_for_in_several_steps(new_engine, monkeypatch):
    engine, groups = new_engine(max_num_seqs=8), []
    store, launch = engine.drafts, engine.drafts._launch
    expected = tokens(serve(new_engine(eager=False, max_num_seqs=8), make_requests({})))
    store.padded.most_requests = 3

    def note(spans, counts):
        groups.append(len(spans))
        return launch(spans, counts)

    monkeypatch.setattr(store, "_launch", note)
    assert tokens(serve(engine, make_requests({}))) == expected
    assert 3 in groups and 1 in groups and max(groups) == 3


def test_prepared_steps_are_all_that_requests_need(new_engine):
    engine, told = new_engine(max_num_seqs=3), []
    prepare(engine, lambda *counts: told.append(counts))
    before = engine.statistics()
    assert before.draft_graphs == len(engine.drafts.sizes()) == len(engine.drafts) > 5
    assert told[-1][0] == told[-1][1] == before.draft_graphs + before.graphs
    serve(engine, make_requests({}))
    after = engine.statistics()
    assert after.draft_graphs == before.draft_graphs and after.late_captures == 0 < after.draft_steps_replayed


def test_step_made_while_requests_are_served_is_late_and_named(new_engine, caplog):
    engine = new_engine()
    engine.drafts.is_prepared = True
    serve(engine, make_requests({}))
    assert engine.statistics().late_captures == len(engine.drafts) > 0
    assert "requests was made while requests were served" in caplog.text and "a step that drafts" in caplog.text


def test_cpu_has_no_drafting_steps_unless_eager(new_engine):
    engine = new_engine(eager=False)
    prepare(engine)
    assert engine.statistics().draft_graphs == 0 and engine.drafts.sizes() == []


def test_number_of_drafted_tokens_follows_the_settings(new_engine, drafter):
    asked = {"eagle3": (0, 3), "dflash": (0, drafter.most_tokens)}[drafter.name]
    for number, most in (asked, (2, 2), (50, drafter.most_tokens)):
        engine = new_engine(speculate=SpeculateConfig(speculate=drafter.name, num_speculative_tokens=number))
        assert engine.drafts.padded.most == most
        assert engine.drafts.sizes()[-1] == DraftSize(8, 8 * (most + 1), most)


def test_ops_of_rows_that_run_op_by_op_are_called_without_a_trace(new_engine, drafter):
    for eager in (False, True):
        engine = new_engine(eager=eager)
        for number in (1, 16, 40):
            engine.drafts.call_outside(number)
        pages = [drafter.k_pages, drafter.v_pages] if drafter.name == "eagle3" else drafter.keys + drafter.values
        idle = engine.idle_page
        assert not any(part[:idle].any() for part in pages)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["eagle3", "dflash"])
def test_gpu_graphs_give_the_drafts_of_eager_steps(name, tmp_path, forbid_waiting):
    """All other steps are padded alike, so that every bit is the same. Nothing waits but the reader of drafts."""
    device = find_device("cuda")
    kernels = Kernels(device, {}, Ledger())
    weights = synthetic_weights(GPU_TARGET, device, seed=3)
    target = GptOss(GPU_TARGET, weights, kernels, device, max_context=4096)
    drafter = load_network(tmp_path, GPU_NETWORKS[name], target, device)
    drafts, texts, told = {}, {}, {}
    for graphs in (True, False):
        engine = Engine(
            target,
            device,
            BatchConfig(max_num_seqs=9, max_num_batched_tokens=256, max_decode_delay_ms=0.0),
            CacheConfig(kv_cache_gib=2.0),
            max_context=4096,
            kernels=KernelConfig(cuda_graphs=graphs),
            fused=FusedOps(ops=DecodeOps.choose(device, kernels.ledger)),
            speculate=always(drafter.name),
            drafter=drafter,
            eager_prompt_steps=True,
            eager_draft_steps=True,
        )
        if graphs:
            prepare(engine)
        drafts[graphs], texts[graphs] = watch(engine), []
        for count in (1, 3, 9):
            lengths = [20 + 150 * number for number in range(count)]
            given = draw_requests(lengths, SamplingParams(max_tokens=30), GPU_TARGET.vocab_size, seed=count)
            texts[graphs].append(run_together(engine, given).tokens)
        told[graphs] = engine.statistics()
        with forbid_waiting(), torch.inference_mode():
            pending = engine.drafts.draft([kept(40, 300), kept(3, 500, first=40)], [2, 1], engine.drafts.features)
        assert [len(draft) for draft in pending.read()] == [2, 1]
    assert texts[True] == texts[False] and drafts[True] == drafts[False]
    captured = told[True]
    assert captured.draft_steps_replayed == told[False].draft_steps_replayed > 0
    assert captured.draft_steps_without_graphs == captured.late_captures == captured.late_compilations == 0
    assert captured.draft_graphs == len(engine.drafts.sizes()) and captured.draft_graph_bytes < 2 * GIB
