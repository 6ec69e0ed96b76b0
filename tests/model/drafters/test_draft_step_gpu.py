"""Captured drafting steps give the bits of eager ones, with inputs that change between replays."""

import pytest
import torch

from firesteel.device import find_device
from firesteel.engine.transfer import Download
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.model.drafters.draft_sizes import DraftSizes
from firesteel.model.drafters.draft_step import DraftStep
from firesteel.model.gpt_oss import GptOss
from firesteel.model.graphs import StepGraph
from firesteel.model.synthetic import synthetic_weights
from tests.model.drafters.draft_plans import (
    GPU_NETWORKS,
    GPU_TARGET,
    context_of,
    draw_plan,
    fill,
    host_of,
    load_network,
    pages_of,
    take,
)

PAGES = 600
MANY = range(30)
CASES = {
    "one request": ([(1, 700)], [3]),
    "one request, all rows": ([(4, 64)], [2]),
    "rows alone": ([(3, 130), (1, 1)], [0, 0]),
    "three requests": ([(1, 5), (4, 2000), (2, 65)], [1, 3, 0]),
    "eight requests": ([(1 + number % 4, 30 + 90 * number) for number in MANY[:8]], [1, 2, 3, 1, 2, 3, 1, 2]),
    "thirty requests": ([(1 + number % 4, 30 + 9 * number) for number in MANY], [number % 4 for number in MANY]),
}


@pytest.fixture(scope="module")
def gpu_target():
    device = find_device("cuda")
    kernels = Kernels(device, {}, Ledger())
    return GptOss(
        GPU_TARGET, synthetic_weights(GPU_TARGET, device, seed=3), kernels, device, max_context=4096
    ), device


@pytest.fixture(scope="module", params=GPU_NETWORKS)
def gpu_drafter(request, tmp_path_factory, gpu_target):
    target, device = gpu_target
    drafter = load_network(tmp_path_factory.mktemp("network"), GPU_NETWORKS[request.param], target, device)
    drafter.attach(PAGES + 1, 64, device.torch_device)
    return drafter


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_gpu_graph_is_eager_and_waits_for_nothing(gpu_target, gpu_drafter, case, forbid_waiting):
    """Graph and eager bits are equal for the same padding. The graph is replayed with other numbers, too."""
    (target, device), drafter = gpu_target, gpu_drafter
    width = len(drafter.boundaries) * GPU_TARGET.hidden_size
    features = torch.randn(300, width, device="cuda", generator=torch.Generator("cuda").manual_seed(5)).bfloat16()
    lens, counts = CASES[case]
    size = DraftSizes(3, 32, is_one_pass=drafter.is_one_pass).find(len(lens), max(counts))
    step = DraftStep(drafter, size, num_pages=64, idle_page=PAGES, features=features)
    fill(drafter, PAGES)
    before = [pages.clone() for pages in pages_of(drafter)]
    graph = StepGraph(step.run, target.kernels.ledger, device, undo=step.rest)
    assert all(torch.equal(now, old) for now, old in zip(pages_of(drafter), before, strict=True)), "at rest"
    pairs = []
    for seed in range(3):
        plan = draw_plan(lens, counts, drafter, page_size=64, pages=PAGES, vocabulary=4096, seed=seed)
        host = host_of(plan, counts, drafter, page_size=64, num_features=300, seed=seed)
        fill(drafter, PAGES)
        step.load(host)
        eager = take(step.run(), counts)
        left = [pages.clone() for pages in pages_of(drafter)]
        fill(drafter, PAGES)
        step.rest()
        with forbid_waiting():
            step.load(host)
            drafted = Download(graph.replay())
        assert take(drafted.read()[0], counts) == eager
        assert all(torch.equal(now, old) for now, old in zip(pages_of(drafter), left, strict=True))
        assert all(pages.isfinite().all() and not pages[PAGES].any() for pages in pages_of(drafter))
        fill(drafter, PAGES)
        plain = take(drafter.draft(context_of(plan, host, features, drafter, 64), counts), counts)
        pairs += [(mine[0], other[0]) for mine, other in zip(eager, plain, strict=True) if mine]
        slots = torch.from_numpy(host.batch.full_slots).cuda()
        for mine, theirs in zip(left, pages_of(drafter), strict=True):
            mine, theirs = (pages[slots // 64, :, slots % 64].float() for pages in (mine, theirs))
            assert (mine - theirs).norm() < 0.05 * theirs.norm(), "tiles differ, and so the order of sums"
    assert 3 * sum(mine == other for mine, other in pairs) >= len(pairs), "near ties may differ"
