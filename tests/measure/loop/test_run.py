"""Timed passes through the engine: stages, the half-way step, experts and readers."""

import pytest
import torch

from firesteel import UserError
from firesteel.config import resolve
from firesteel.engine.load import load_engine
from firesteel.measure.decode.experts import ExpertMeter
from firesteel.measure.loop.bench import draw
from firesteel.measure.loop.run import TimedPass, run_watched


def open_reader(request):
    return lambda output: None


@pytest.fixture
def loaded(checkpoint):
    settings = {"model": str(checkpoint), "device": "cpu", "memory_reserve_gib": 0.0, "prefix_caching": False}
    return load_engine(checkpoint, resolve(settings).config)


def test_each_output_goes_to_the_reader_of_its_request(loaded):
    requests, read = draw(loaded, 2, 10, 5), {}

    def open_noting_reader(request):
        read[request.request_id] = []
        return lambda output: read[request.request_id].extend(output.token_ids)

    timed = TimedPass(loaded, requests, open_noting_reader)
    timed.run()
    assert read == dict(timed.outputs.tokens) and [len(tokens) for tokens in read.values()] == [5, 5]


def test_too_few_steps_to_time_are_an_error(loaded):
    with pytest.raises(UserError, match="only 1 steps decoded 2 requests together; timing needs at least 2"):
        TimedPass(loaded, draw(loaded, 2, 10, 3), open_reader).run()


def test_marks_are_made_around_each_timed_step(loaded):
    timed = TimedPass(loaded, draw(loaded, 2, 10, 8), open_reader)
    timed.run()
    assert len(timed.marks.read().steps_ms) == timed.num_tokens / 2 - 1


def test_stages_cover_only_the_timed_steps(loaded):
    timed = TimedPass(loaded, draw(loaded, 2, 10, 20), open_reader)
    loaded.engine.totals.schedule_s += 1000
    timed.run()
    assert set(timed.stages_s) == {"schedule", "build", "run", "wait", "read"}
    assert 0 < sum(timed.stages_s.values()) < timed.seconds


def test_half_way_step_has_the_inputs_of_the_middle_depth(loaded):
    timed = TimedPass(loaded, draw(loaded, 2, 10, 20), open_reader)
    ready, begin = timed.run()
    with torch.inference_mode():
        ready.step.restore(begin)
    assert ready.step.num_requests == 2 and 17 <= int(ready.step.batch.kv_lens.max()) <= 24


def test_meter_sees_the_experts_of_the_steps_themselves(loaded, monkeypatch):
    """Counting runs a step twice, so each point has two router calls per layer with the same choice."""
    requests, seen = draw(loaded, 2, 10, 12, 1.0), []
    plain, kernels = loaded.model.kernels.route, loaded.model.kernels

    def route(operands):
        ids, weights = plain(operands)
        seen.append(ids)
        return ids, weights

    monkeypatch.setattr(kernels, "route", route)
    tokens = []
    for points in ([], [1, 6]):
        timed = TimedPass(loaded, requests, open_reader)
        timed.run()
        tokens.append(timed.outputs.tokens)
        seen.clear()
        meter = ExpertMeter(points)
        run_watched(loaded.engine, requests, meter)
    layers = loaded.spec.num_layers
    steps = torch.stack(seen[layers:]).unflatten(0, (-1, layers))  # the prompts came first
    assert len(steps) == 11 + 2 and tokens[0] == tokens[1]
    assert torch.equal(steps[1], steps[2]) and torch.equal(steps[7], steps[8])
    assert meter.count(loaded.spec).num_tokens == 4
    assert torch.equal(torch.cat(meter._chosen), steps[[1, 7]].flatten(0, 1))
