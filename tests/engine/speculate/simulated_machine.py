"""A machine of known speed under the real engine: its scheduler, run-ahead, policy and speculators.

A step of n rows takes the device a given time; the host takes a given time for each step that it plans and
launches, which the device hides if the step was launched ahead. Every token is followed by its number plus one, so
drafts can be right with any chance. Nothing is computed but prompts, and nothing looks at a real clock.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import torch

from firesteel.config import BatchConfig, CacheConfig, SpeculateConfig
from firesteel.engine.engine import Engine
from firesteel.engine.speculate.drafting import DraftingSpeculator
from firesteel.engine.speculate.measure import ROWS
from firesteel.engine.speculate.row_costs import RowCosts
from firesteel.engine.step.decode_loop import DecodeLoop
from firesteel.measure.speculate.simulated import SimulatedSpeculator, follow, use_speculator
from firesteel.types import Request, SamplingParams, SpanResult

VOCABULARY = 272  # of the tiny model
MOST_REQUESTS = 64
# Milliseconds by rows: 120b on an H200 (records/h200-speculate to 8 rows, records/h200-loop beyond).
H200_MS = {1: 1.65, 2: 2.38, 3: 2.90, 4: 3.31, 5: 4.10, 6: 4.50, 7: 4.91, 8: 5.22, 16: 8.2, 32: 12.0, 64: 16.9}
H200_MS |= {128: 25.0, 256: 40.0}


@dataclass(kw_only=True)
class Machine:
    """Times in milliseconds.

    `noise` is the relative spread of a step's time; with it, one in 200 takes three times as long.
    """

    host_ms: float = 0.35
    noise: float = 0.0
    network_ms: float = 0.0  # of a drafting step: what a token and what storing rows takes
    storing_ms: float = 0.0
    now: float = 0.0
    free: float = 0.0  # the device has done all that was launched

    def __post_init__(self):
        self.random = random.Random(5)

    def step_ms(self, rows):
        known = sorted(H200_MS)
        place = bisect_left(known, rows)
        if known[place] == rows:
            return H200_MS[rows]
        low, high = known[place - 1], known[place]
        return H200_MS[low] + (rows - low) / (high - low) * (H200_MS[high] - H200_MS[low])

    def launch(self, ms):
        """Returns when the device will have done a work of `ms` that is launched now."""
        if self.noise:
            ms *= max(0.5, self.random.gauss(1, self.noise)) * (3 if self.random.random() < 0.005 else 1)
        self.free = max(self.now, self.free) + ms
        return self.free

    def wait(self, end):
        self.now = max(self.now, end)


@dataclass
class PendingStep:
    machine: Machine
    plan: object
    end: float

    def read(self):
        self.machine.wait(self.end)
        for span in self.plan.spans:
            before = [span.token_ids[span.start], *span.draft_ids]
            yield from (SpanResult(token_id=follow(token, 1, VOCABULARY)[0]) for token in before)


class SimulatedLoop:
    """Stands in for `DecodeLoop`."""

    takes = staticmethod(DecodeLoop.takes)

    def __init__(self, machine, store):
        self.machine, self.store = machine, store

    def begin(self, plan, token_ids=None):
        self.machine.now += self.machine.host_ms

    def follow(self, last, plan):
        self.machine.now += self.machine.host_ms

    def launch(self, plan, rows, observer):
        return PendingStep(self.machine, plan, self.machine.launch(self.machine.step_ms(plan.num_tokens)))


@dataclass
class SimulatedDrafter:
    name = "simulated"
    reach = 4
    usual_acceptance = None
    boundaries = ()


@dataclass(frozen=True)
class Drafted:
    """Tokens on their way from the network."""

    machine: Machine
    end: float
    token_ids: list[list[int]]

    def read(self):
        self.machine.wait(self.end)
        return self.token_ids


class SimulatedNetwork:
    """Stands in for `DraftStore`: drafts with the chance that `acceptance` returns now."""

    page_size = 64
    num_launched = num_stored_outside = num_off = num_late = seconds = num_bytes = 0

    def __init__(self, machine, acceptance, most):
        self.machine, self.acceptance, self.drafter, self.most = machine, acceptance, SimulatedDrafter(), most
        self.padded = self
        self.num_runs = 0

    def draft(self, spans, counts, features):
        self.num_runs += 1
        end = self.machine.launch(self.machine.storing_ms + self.machine.network_ms * max(counts))
        return Drafted(self.machine, end, [self._draft(*both) for both in zip(spans, counts, strict=True)])

    def _draft(self, kept, count):
        drafts = follow(kept.span.token_ids[kept.span.end], count, VOCABULARY)
        return spoil(drafts, self.acceptance(), self.machine.random) if count else []


def spoil(drafts, acceptance, rng):
    wrong = next((place for place in range(len(drafts)) if rng.random() >= acceptance), len(drafts))
    return [*drafts[:wrong], *((token + 7) % VOCABULARY for token in drafts[wrong:])]


class Network(DraftingSpeculator):
    def follow(self, plan, results, features):
        super().follow(plan, results, torch.empty(0))  # nobody reads residuals


class Copies(SimulatedSpeculator):
    """Copies whose chance may change."""

    def __init__(self, policy, find_job, *, most, chance: Callable[[], float]):
        super().__init__(policy, find_job, most=most, acceptance=0.0, vocab_size=VOCABULARY)
        self.chance = chance

    def _find_text(self, job):
        text = super()._find_text(job)
        text.index.acceptance = self.chance()
        return text


@dataclass
class Run:
    """What was simulated."""

    engine: Engine
    machine: Machine
    tokens: int
    ms: float

    @property
    def rate(self):
        return self.tokens / self.ms


def open_engine(llm, machine, kind, acceptance, *, most, measured=lambda ms: ms, measured_plain=None, adapts=True):
    """Returns an engine on the machine; `measured` falsifies what is measured at first."""
    engine = Engine(
        llm.model,
        llm.device,
        BatchConfig(page_size=64, max_num_seqs=MOST_REQUESTS, max_num_batched_tokens=1024),
        CacheConfig(kv_cache_gib=0.35, prefix_caching=False),
        max_context=100_000,
        speculate=SpeculateConfig(speculate="off" if kind == "off" else "ngram", adapt_speculation=adapts),
        run_ahead_steps=3,
    )
    engine.clock = lambda: machine.now / 1e3
    engine.loop = SimulatedLoop(machine, engine.loop.store)
    if kind == "off":
        return engine
    policy, find_job = engine.speculator.policy, engine.speculator.find_job
    falsify(policy, machine, measured, measured_plain or measured)
    if kind == "copies":
        use_speculator(engine, Copies(policy, find_job, most=most, chance=acceptance))
    else:
        network = SimulatedNetwork(machine, acceptance, most)
        use_speculator(engine, Network(network, policy, find_job, reserve=engine.scheduler.reserve))
    return engine


def falsify(policy, machine, measured, measured_plain):
    policy._measure = lambda: {count: measured(machine.step_ms(count)) for count in ROWS}
    if measured_plain is not measured:
        policy.start()
        policy.plain = RowCosts({count: measured_plain(machine.step_ms(count)) for count in ROWS})


def simulate(engine, machine, *, requests, tokens):
    """Runs requests of `tokens`; counts from when all decode to the end of the first."""
    begin, drawn = None, 0
    for number in range(requests):
        params = SamplingParams(max_tokens=tokens + 5, ignore_eos=True)
        engine.submit(Request(request_id=str(number), token_ids=[number, 3], params=params))
    running = requests
    while engine.has_work and running == requests:
        outputs = engine.step()
        running = len(engine.scheduler.jobs)
        if begin is None and not engine.scheduler.waiting:
            begin, drawn = machine.now, 0
            continue
        drawn += sum(len(output.token_ids) for output in outputs)
    return Run(engine, machine, drawn, machine.now - begin)
