"""Packed messages round-trip."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.config import resolve
from firesteel.engine.process.messages import (
    HEAD_BYTES,
    Alive,
    Around,
    Cancel,
    Dying,
    GetLedger,
    GetStatistics,
    LedgerArtefact,
    LedgerRow,
    LedgerSoFar,
    Loading,
    Output,
    Planned,
    Preparing,
    Ready,
    Refused,
    Rejected,
    Shutdown,
    Start,
    StatisticsAnswer,
    Step,
    Submit,
    pack,
    parse_from_engine,
    parse_to_engine,
    read_head,
)
from firesteel.engine.statistics import Statistics
from firesteel.types import Request, RequestStatistics, SamplingParams, StepOutput, TokenLogprobs

INTS = st.integers(0, 2**48)
REALS = st.floats(allow_nan=False)
NAMES = st.text(max_size=8)
TOKENS = st.lists(INTS, max_size=5)
LOGPROBS = st.builds(
    TokenLogprobs, token_id=INTS, logprob=REALS, top=st.lists(st.tuples(INTS, REALS), max_size=3).map(tuple)
)
REQUEST_STATISTICS = st.builds(
    RequestStatistics,
    queue_s=REALS,
    first_token_s=REALS,
    token_s=REALS,
    prompt_tokens=INTS,
    cached_tokens=INTS,
    output_tokens=INTS,
    preemptions=INTS,
)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.integers(9, 2**40),
    min_tokens=st.integers(0, 9),
    temperature=st.floats(0, 9),
    top_k=st.integers(-1, 99),
    top_p=st.floats(0.1, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.1, 9),
    presence_penalty=st.integers(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logit_bias=st.dictionaries(INTS, st.floats(-100, 100), max_size=3),
    seed=st.integers(-(2**63), 2**64 - 1),
    allowed_token_ids=st.none() | st.lists(INTS, min_size=1, max_size=3).map(tuple),
    grammar=st.none() | st.text(min_size=1, max_size=9),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=3).map(tuple),
    include_stop_str_in_output=st.booleans(),
    stop_token_ids=st.lists(INTS, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
)
STEP_OUTPUTS = st.builds(
    StepOutput,
    request_id=NAMES,
    token_ids=TOKENS,
    finish_reason=st.none() | NAMES,
    num_cached=INTS,
    logprobs=st.none() | LOGPROBS,
    prompt_logprobs=st.none() | st.lists(LOGPROBS, max_size=3),
    logits=st.none(),
    error=st.none() | NAMES,
    statistics=st.none() | REQUEST_STATISTICS,
)
REQUESTS = st.builds(
    Request,
    request_id=NAMES,
    token_ids=TOKENS,
    params=PARAMS,
    stops=st.frozensets(INTS, max_size=3),
    mask=st.none(),
    score=st.just(False),
    arrival=REALS,
    cache_salt=st.sampled_from(["", "0:", "1:é"]),
)
ROWS = st.builds(
    LedgerRow,
    op=NAMES,
    implementation=NAMES,
    activation=NAMES,
    calls=INTS,
    seconds=REALS,
    launches=st.dictionaries(NAMES, INTS, max_size=2),
    clipped=st.none() | INTS,
    artefacts=st.lists(
        st.builds(
            LedgerArtefact, kernel=NAMES, tile=NAMES, artefact=NAMES, launches=INTS, verdict=st.none() | NAMES
        ),
        max_size=2,
    ),
)
CONFIGS = st.sampled_from(
    [resolve(environ={}).config, resolve({"model": "x", "kv_cache_gib": 0.5, "sinks": False}, environ={}).config]
)
TO_ENGINE = st.one_of(
    st.builds(Start, directory=NAMES, config=CONFIGS),
    st.builds(Submit.of, REQUESTS, INTS),
    st.builds(Cancel, number=INTS, finished=st.booleans()),
    st.builds(GetStatistics, number=INTS),
    st.just(GetLedger()),
    st.just(Shutdown()),
)
FROM_ENGINE = st.one_of(
    st.builds(Around, surroundings=st.dictionaries(NAMES, st.none() | NAMES | INTS, max_size=3)),
    st.builds(Loading, done_bytes=INTS, all_bytes=INTS),
    st.builds(Preparing, done=INTS, total=INTS),
    st.builds(
        Ready,
        device=NAMES,
        max_context=INTS,
        vocab_size=INTS,
        pages=INTS,
        page_size=INTS,
        max_num_seqs=INTS,
        cache_bytes=INTS,
        load_s=REALS,
        kernels=st.dictionaries(NAMES, NAMES, max_size=2),
    ),
    st.builds(Refused, kind=NAMES, reason=NAMES),
    st.builds(Planned, spans=st.lists(st.tuples(NAMES, INTS, INTS), max_size=3)),
    st.builds(Step, outputs=st.lists(st.builds(Output.of, STEP_OUTPUTS, INTS), max_size=3)),
    st.builds(Rejected, number=INTS, kind=NAMES, reason=NAMES),
    st.builds(StatisticsAnswer, number=INTS, statistics=st.builds(Statistics, pages=INTS, run_s=REALS)),
    st.builds(LedgerSoFar, rows=st.lists(ROWS, max_size=2)),
    st.builds(Dying, cause=NAMES),
    st.just(Alive()),
)


def body_of(frame):
    assert read_head(frame[:HEAD_BYTES]) == len(frame) - HEAD_BYTES
    return frame[HEAD_BYTES:]


@given(TO_ENGINE)
def test_messages_to_the_engine_round_trip(message):
    assert parse_to_engine(body_of(pack(message))) == message


@given(FROM_ENGINE)
def test_messages_from_the_engine_round_trip(message):
    assert parse_from_engine(body_of(pack(message))) == message


@given(REQUESTS, INTS)
def test_request_round_trips(request, number):
    sent = parse_to_engine(body_of(pack(Submit.of(request, number))))
    assert sent.request() == request and sent.number == number


@given(STEP_OUTPUTS, INTS)
def test_output_round_trips(output, number):
    (sent,) = parse_from_engine(body_of(pack(Step(outputs=[Output.of(output, number)])))).outputs
    assert sent.number == number
    for name in set(Output.__struct_fields__) - {"number"}:
        assert getattr(sent, name) == getattr(output, name), name


@pytest.mark.parametrize("tokens", [(1, 2), range(3)])
def test_any_sequence_of_tokens_is_accepted(tokens):
    request = Request(request_id="a", token_ids=tokens, params=SamplingParams())
    sent = parse_to_engine(body_of(pack(Submit.of(request, 1))))
    assert sent.request() == replace(request, token_ids=list(tokens))


def test_small_step_is_a_small_message():
    """About 20 bytes per token: 64 requests do not fill a socket's buffer."""
    output = StepOutput(
        request_id="a name that does not cross", token_ids=[200_000], finish_reason=None, num_cached=9
    )
    assert len(pack(Step(outputs=[Output.of(output, number) for number in range(64)]))) < 64 * 20
