"""Engines on a GPU that computes late (tests/late): no token changes, and the host never waits by accident."""

import random
from itertools import chain

import pytest
import torch

from firesteel.config import KernelConfig
from firesteel.engine.transfer import Download
from firesteel.model import host_batch
from firesteel.types import Request, SamplingParams
from tests.engine.arrivals import serve
from tests.engine.drafted_requests import always, make
from tests.engine.speculate.test_draft_store import SMALL, watch
from tests.late.cuda import late_cuda, move_drafter, open_late
from tests.model.drafters.draft_plans import load_network

RNG = random.Random(3)
PROMPTS = [[RNG.randrange(256) for _ in range(length)] for length in (1, 9, 33, 60)]
PROMPTS.append([3, 1, 4] * 8)
NEW = 9
SEEDS = (None, 1)
SAMPLED = {
    "seed": {"temperature": 1.0, "seed": 7},
    "top_p": {"temperature": 0.8, "top_p": 0.7, "top_k": 40, "seed": 1},
    "min_tokens": {"min_tokens": 6, "stop_token_ids": (5,)},
    "bias": {"logit_bias": {5: 3.0, 9: -100.0}},
    "allowed": {"allowed_token_ids": tuple(range(0, 272, 3))},
    "logprobs": {"logprobs": 3},
    "prompt_logprobs": {"prompt_logprobs": 2},
}
PENALIZED = {
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
    "bad_words": {"bad_words": ((1, 2), (3,))},
}


def requests_of(params=None, new=NEW):
    """Returns a request per prompt, or one per name with its parameters."""
    named = params or {str(number): {} for number in range(len(PROMPTS))}
    return [
        Request(
            request_id=name,
            token_ids=PROMPTS[number % len(PROMPTS)],
            params=SamplingParams(max_tokens=new, **own),
            stops=frozenset(own.get("stop_token_ids", ())),
        )
        for number, (name, own) in enumerate(named.items())
    ]


def run(engine, requests, *, at=None, cancelled=None):
    """Returns tokens and log-probabilities by request; number i arrives before step at[i]."""
    made = serve(engine, requests, at=at, cancel={cancelled: 4})
    errors = [output.error for outputs in made.values() for output in outputs if output.error is not None]
    assert not errors, errors
    assert engine.pool.num_held == 0
    return {
        name: [
            (output.token_ids, listed(output.logprobs), [*map(listed, output.prompt_logprobs or ())])
            for output in outputs
        ]
        for name, outputs in made.items()
    }


def join(outputs):
    """Returns tokens, their log-probabilities and those of the prompt, which may come in pieces."""
    ids, scored, prompts = zip(*outputs, strict=True) if outputs else ([], [], [])
    return [*chain(*ids)], [entry for entry in scored if entry], [*chain(*prompts)]


def listed(scored):
    return None if scored is None else (scored.token_id, [token for token, _ in scored.top])


@pytest.fixture(scope="module")
def expected(llm):
    return run(make(llm), requests_of())


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_of_requests_that_come_and_go(llm, expected, seed, fused):
    with late_cuda(seed) as gpu:
        engine = make(open_late(gpu, llm, fused=fused))
        made = run(engine, requests_of(), at=[4, 0, 9, 2, 3], cancelled="3")
        assert (
            engine.run_ahead_steps == 3 and engine.prompts.num_launched > 1 and len(engine.loop.store.ready()) > 2
        )
    assert all(made[name] == expected[name] for name in "0124")
    assert made["3"] == expected["3"][: len(made["3"])] and len(made["3"]) < NEW


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_of_preempted_requests_and_of_prompts_in_pieces(llm, expected, seed):
    with late_cuda(seed) as gpu:
        engine = make(open_late(gpu, llm), pages=30, max_num_batched_tokens=16)
        assert run(engine, requests_of()) == expected
        assert engine.statistics().preemptions > 0


@pytest.mark.parametrize("params", [SAMPLED, PENALIZED], ids=["run ahead", "tokens wanted"])
@pytest.mark.parametrize("fused", [False, True])
def test_sampled_tokens_and_log_probabilities(llm, params, fused):
    with late_cuda() as gpu:
        made = run(make(open_late(gpu, llm, fused=fused)), requests_of(params))
    assert made == run(make(llm), requests_of(params))


def test_tokens_without_graphs(llm, expected):
    with late_cuda(2) as gpu:
        kernels = KernelConfig(cuda_graphs=False)
        assert run(make(open_late(gpu, llm), kernels=kernels), requests_of()) == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", SMALL)
def test_drafts_of_networks_are_those_of_a_cpu(llm, tmp_path, kind, seed):
    """Networks of random weights, hardly any of whose drafts are right."""
    drafter = load_network(tmp_path, SMALL[kind], llm.model, llm.device)
    settings = {"speculate": always(kind), "max_num_seqs": 3}
    here = make(llm, drafter=drafter, **settings)
    drafts, expected = watch(here), run(here, requests_of(new=4)[1:4])
    with late_cuda(seed) as gpu:
        late = open_late(gpu, llm)
        engine = make(late, drafter=move_drafter(gpu, drafter, late.model), **settings)
        late_drafts = watch(engine)
        assert run(engine, requests_of(new=4)[1:4]) == expected
        assert engine.drafts.num_launched > 0 and engine.drafts.num_stored_outside > 0
    assert late_drafts == drafts and any(map(any, drafts))


@pytest.mark.parametrize("fused", [False, True])
def test_copied_drafts_change_no_token(llm, fused):
    params = {str(number): {"allowed_token_ids": (5, 6)} for number in range(3)}
    with late_cuda(4) as gpu:
        engine = make(open_late(gpu, llm, fused=fused), speculate=always("ngram"))
        made = run(engine, requests_of(params, new=16))
        assert 0 < engine.totals.accepted_tokens < engine.totals.draft_tokens
    assert made == run(make(llm), requests_of(params, new=16))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_tokens_of_random_requests_at_random_times(llm, seed):
    rng = random.Random(seed)
    names = [str(number) for number in range(14)]
    params = {name: rng.choice([{}, {}, *SAMPLED.values(), *PENALIZED.values()]) for name in names}
    requests = requests_of(params, new=rng.randint(6, 20))
    rng.shuffle(requests)
    settings = {
        "pages": rng.choice([40, 90, 300]),
        "max_num_seqs": rng.choice([2, 5, 12]),
        "max_num_batched_tokens": rng.choice([13, 40, 512]),
        "speculate": rng.choice([None, always("ngram")]),
    }
    arrivals = [rng.randrange(40) for _ in requests]
    with late_cuda(seed) as gpu:
        late = open_late(gpu, llm, fused=rng.random() < 0.5)
        made = run(make(late, **settings), requests, at=arrivals, cancelled=names[3])
    expected = run(make(llm), requests)
    for name in names:
        mine, other = (join(outputs[name]) for outputs in (made, expected))
        assert mine == other or (name == "3" and mine[0] == other[0][: len(mine[0])]), name


def test_log_probabilities_of_a_prompt_wait_for_no_later_step(llm):
    """They were read by copies that waited for the decoding step launched after the prompt, too."""
    with late_cuda() as gpu:
        engine = make(open_late(gpu, llm))
        engine.submit(requests_of({"a": {}, "b": {"prompt_logprobs": 2}})[1])
        (output,) = engine.step()
        assert len(output.prompt_logprobs) == len(PROMPTS[1]) - 1
        assert len(engine.in_flight.launched) == 1 and gpu.current.launched, "the decoding step has not run"


def test_pieces_of_a_prompt_are_two_steps_ahead_at_most_and_teach_no_durations(llm):
    """All pieces were launched at once, so that a request that arrived waited, and launches passed for steps."""
    with late_cuda() as gpu:
        engine, learnt = make(open_late(gpu, llm), max_num_batched_tokens=16), []
        engine.cost.add = lambda num_tokens, ms: learnt.append(num_tokens)
        engine.submit(requests_of()[3])
        waiting = []
        while not engine.step():
            waiting.append(sum(work.__name__ == "_run" for work in gpu.current.launched if callable(work)))
        assert waiting == [1, 1, 1] and learnt == []
        while engine.has_work:
            engine.step()
        engine.submit(requests_of()[1])
        engine.step()
        assert learnt == [len(PROMPTS[1])]


def plant_reused_staging(patch):
    """Copies every batch to the GPU from the same pinned memory."""
    staging = torch.empty(1 << 14, dtype=torch.int64, pin_memory=True)

    def send(numbers, target):
        part = staging[: numbers.numel()].view(numbers.shape)
        target.copy_(part.copy_(numbers), non_blocking=True)

    patch.setattr(host_batch, "send", send)


def plant_unawaited_results(patch):
    """Reads results without waiting for their copies."""
    patch.setattr(Download, "read", lambda self: self._copies)


FAULTS = (plant_reused_staging, plant_unawaited_results)


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
@pytest.mark.parametrize("fused", [False, True])
def test_planted_faults_show(llm, expected, plant, fused):
    with late_cuda() as gpu, pytest.MonkeyPatch.context() as patch:
        engine = make(open_late(gpu, llm, fused=fused))
        plant(patch)
        try:
            made = run(engine, requests_of())
        except (AssertionError, IndexError, OverflowError):
            return
    assert made != expected
