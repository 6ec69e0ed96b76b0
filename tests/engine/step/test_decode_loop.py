"""Plans that decode, new pages on the device, and steps in flight."""

from array import array
from dataclasses import replace

import pytest
import torch

from firesteel.config import KernelConfig
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.engine.sample.row import SampleRow
from firesteel.engine.sample.sampler import Sampler
from firesteel.engine.step.decode_loop import DecodeLoop, StepObserver, StepsInFlight
from firesteel.engine.step.step_store import FusedOps, StepStore
from firesteel.model.decode_ops import DecodeOps
from firesteel.types import Plan, Request, SamplingParams, Span


def span(length, start, end, *, prompt=None, **params):
    token_ids = list(range(1, length + 1))
    request = Request(request_id="a", token_ids=token_ids[:prompt], params=SamplingParams(**params))
    return Span(
        request=request,
        token_ids=token_ids,
        start=start,
        end=end,
        full_pages=array("q", [3, 5, 7]),
        window_pages=array("q", [4, 6, 8]),
        num_logits=1,
    )


@pytest.mark.parametrize(
    ("decoding", "decodes"),
    [
        (span(6, 5, 6), True),
        (span(1, 0, 1), True),
        (span(6, 4, 6), False),
        (span(6, 4, 5), False),
        (span(6, 5, 6, prompt_logprobs=1), False),
        (span(7, 6, 7, prompt=6, prompt_logprobs=1), True),
    ],
)
def test_plan_decodes_if_each_request_has_one_token_and_gets_the_next(decoding, decodes):
    assert DecodeLoop.takes(Plan(spans=[decoding])) is decodes
    assert DecodeLoop.takes(Plan(spans=[decoding, span(6, 4, 6)])) is False


@pytest.fixture(params=[False, True], ids=["network", "fused"])
def loop(request, llm):
    fused = FusedOps(ops=DecodeOps.choose(llm.device, llm.kernels.ledger)) if request.param else None
    cache = new_cache(llm.spec, 10, 4, llm.device, torch.float32)
    for tensor in (*cache.keys, *cache.values):
        tensor.zero_()  # the tests begin in the middle of texts: unwritten memory may hold NaN
    store = StepStore(
        llm.model, cache, llm.device, KernelConfig(), fused=fused, idle_page=9, most_requests=4, max_context=12
    )
    return DecodeLoop(store, Sampler(llm.spec.vocab_size, llm.device.torch_device))


def inputs(loop):
    step = loop.current.step
    return step.batch if hasattr(step, "batch") else step.inputs


def test_new_page_reaches_table_and_slots(loop):
    first = span(3, 2, 3)
    rows = [SampleRow(params=SamplingParams(), position=3)]
    loop.begin(Plan(spans=[first]))
    loop.launch(Plan(spans=[first]), rows)
    later = [replace(first, start=start, end=start + 1) for start in range(3, 9)]
    before, last = loop.current, first
    for following in later:
        loop.follow(Plan(spans=[last]), Plan(spans=[following]))
        loop.launch(Plan(spans=[following]), rows)
        assert loop.current is before
        last = following
        held = inputs(loop)
        assert held.full.page_table[0, : following.start // 4 + 1].tolist() == [3, 5, 7][: following.start // 4 + 1]
        assert held.positions.tolist() == [following.end] and held.kv_lens.tolist() == [following.end + 1]
        if following.end % 4:
            page = following.end // 4
            assert held.full.slots.tolist() == [[3, 5, 7][page] * 4 + following.end % 4]
            assert held.window.slots.tolist() == [[4, 6, 8][page] * 4 + following.end % 4]


def test_requests_that_go_on_keep_their_tokens_when_others_leave(loop):
    """The host has not read the tokens: they stay on the device."""
    spans = [replace(span(3, 2, 3), token_ids=[number, 1, 2]) for number in range(3)]
    only = [SamplingParams(allowed_token_ids=(70 + number,)) for number in range(3)]
    loop.begin(Plan(spans=spans))
    loop.launch(Plan(spans=spans), [SampleRow(params=params, position=3) for params in only])
    following = [replace(spans[row], start=3, end=4) for row in (0, 2)]
    loop.follow(Plan(spans=spans), Plan(spans=following))
    held = inputs(loop)
    assert loop.current.step.num_requests == 2
    assert held.token_ids.tolist() == [70, 72] and held.positions.tolist() == [3, 3]


def test_prompt_s_tokens_reach_the_step_after_it_without_the_host(loop):
    first = replace(span(3, 2, 3), start=3, end=4)
    loop.begin(Plan(spans=[first]), torch.tensor([55]))
    assert inputs(loop).token_ids.tolist() == [55] and inputs(loop).positions.tolist() == [3]


def test_tokens_of_the_step_itself_survive_its_load(loop):
    first = replace(span(3, 2, 3), start=3, end=4)
    loop.begin(Plan(spans=[first]), torch.tensor([55]))
    loop.begin(Plan(spans=[first]), loop.current.step.result.token_ids)
    assert inputs(loop).token_ids.tolist() == [55]


def test_drawn_token_is_what_the_next_step_reads(loop):
    first = span(3, 2, 3)
    loop.begin(Plan(spans=[first]))
    only = SamplingParams(allowed_token_ids=(77,))
    drawn = loop.launch(Plan(spans=[first]), [SampleRow(params=only, position=3)]).read()
    assert drawn[0].token_id == 77 == int(inputs(loop).token_ids[0])


def test_observers_see_each_launch(loop):
    seen, first = [], span(3, 2, 3)
    observer = StepObserver(before_launch=lambda: seen.append("before"), after_launch=lambda: seen.append("after"))
    loop.begin(Plan(spans=[first]))
    loop.launch(Plan(spans=[first]), [SampleRow(params=SamplingParams(), position=3)], observer)
    assert seen == ["before", "after"]


def test_masks_are_computed_while_the_device_computes(loop):
    seen, first = [], span(3, 2, 3)

    def rows():
        seen.append("asked")
        yield SampleRow(params=SamplingParams(), position=3)

    loop.begin(Plan(spans=[first]))
    observer = StepObserver(after_launch=lambda: seen.append("launched"))
    assert loop.launch(Plan(spans=[first]), rows(), observer).read()[0].error is None
    assert seen == ["launched", "asked"]


def test_launched_steps_follow_each_other_until_closed():
    in_flight = StepsInFlight()
    assert in_flight.last is None
    in_flight.add("first", 1)
    in_flight.add("second", 2)
    assert in_flight.last == "second" and list(in_flight.launched) == [("first", 1), ("second", 2)]
    in_flight.close()
    assert in_flight.last is None and len(in_flight.launched) == 2


def test_steps_whose_requests_are_gone_are_dropped_from_the_front():
    in_flight = StepsInFlight()
    for plan in ("a", "b", "c"):
        in_flight.add(plan, 0)
    in_flight.drop_unwanted(lambda plan: plan == "c")
    assert list(in_flight.launched) == [("c", 0)]
    in_flight.drop_unwanted(lambda plan: False)
    assert not in_flight.launched
