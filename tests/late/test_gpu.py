"""The late GPU: launches run when the host waits, too early reads and writes show, accidental waits are errors."""

import gc

import pytest
import torch

from tests.late.cuda import late_cuda
from tests.late.gpu import HERE, NEVER, HostWaits, NotCaptured


@pytest.fixture
def gpu():
    with late_cuda() as late, torch.inference_mode():
        yield late


def pinned(values):
    return torch.tensor(values).pin_memory()


def test_copy_reads_pinned_memory_when_it_runs(gpu):
    staging = pinned([1, 2])
    there = staging.to(HERE, non_blocking=True)
    staging[0] = 7
    gpu.synchronize()
    assert there.inner.tolist() == [7, 2] and there.is_cuda and there.device.index == 0


def test_copy_to_the_host_is_there_after_its_event_and_what_follows_has_not_run(gpu):
    there, host = torch.ones(2, dtype=torch.int64, device=HERE), torch.empty(2, dtype=torch.int64, pin_memory=True)
    host.copy_(there, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    there.add_(1)
    assert host.tolist() == [NEVER] * 2 and not event.query()
    event.synchronize()
    assert host.tolist() == [1, 1] and there.inner.tolist() == [1, 1]


@pytest.mark.parametrize(
    "wait",
    [
        lambda there: there.sum().item(),
        lambda there: bool(there[0] > 0),
        lambda there: there.tolist(),
        lambda there: there.cpu(),
        lambda there: there[there > 0],
        lambda there: there.nonzero(),
        lambda there: torch.where(there > 0, there, torch.tensor(1.0)),
        lambda there: torch.tensor([1, 2], device=HERE),
        lambda there: there.copy_(torch.ones(2)),
        lambda there: there.copy_(torch.ones(2), non_blocking=True),
        lambda there: there.copy_(torch.ones(2).pin_memory()),
    ],
)
def test_accidental_waits_are_errors(gpu, wait):
    with pytest.raises(HostWaits):
        wait(torch.zeros(2, device=HERE))


def test_tensors_of_host_and_gpu_do_not_mix(gpu):
    there = torch.zeros(2, device=HERE)
    with pytest.raises(RuntimeError, match="tensor of the host"):
        there + torch.ones(2)
    assert (there + torch.tensor(1.0)).inner.isnan().all(), "numbers may; what is new holds NaN until it has run"


def capture(run, pool=None):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        return graph, run()


def test_graph_runs_again_on_inputs_in_place_and_overwrites_its_outputs(gpu):
    number = torch.zeros(1, device=HERE)
    graph, output = capture(lambda: number.add_(1) * 10)
    gpu.synchronize()
    assert number.inner.item() == 0, "a capture runs nothing"
    for _ in range(2):
        graph.replay()
    gpu.synchronize()
    assert (number.inner.item(), output.inner.item()) == (2, 20)


def test_replay_overwrites_results_of_other_graphs_of_its_pool(gpu):
    number, pool = torch.ones(1, device=HERE), torch.cuda.graph_pool_handle()
    (first, kept), (second, _) = (capture(lambda: number * 10, pool) for _ in range(2))
    first.replay()
    taken = kept + 0
    second.replay()
    gpu.synchronize()
    assert taken.inner.item() == 10 and kept.inner.isnan().all()


def test_graph_of_freed_memory_and_captured_waits_are_errors(gpu):
    numbers = [torch.ones(1, device=HERE)]
    graph, _ = capture(lambda: numbers[0] * 10)
    graph.replay()
    numbers.clear()
    gc.collect()
    with pytest.raises(NotCaptured, match="freed"):
        graph.replay()
    for wait in (torch.cuda.synchronize, lambda: pinned([1]).to(HERE, non_blocking=True)):
        with pytest.raises(NotCaptured, match="cannot be captured"):
            capture(wait)


def test_streams_run_side_by_side_unless_one_waits():
    seen = set()
    for seed in range(20):
        with late_cuda(seed) as gpu:
            number, side = torch.zeros(1, device=HERE), torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                number.fill_(1)
            number.fill_(2)
            gpu.synchronize()
            torch.cuda.current_stream().wait_stream(side)
            ordered = number + 0
            gpu.synchronize()
            seen.add((number.inner.item(), ordered.inner.item()))
    assert seen == {(1.0, 1.0), (2.0, 2.0)}
