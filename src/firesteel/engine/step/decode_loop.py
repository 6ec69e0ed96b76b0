"""Launches decode steps whose inputs stay on the device, and keeps those whose tokens were not read yet.

loop.begin(plan)             # uploads the inputs of the first step
pending = loop.launch(plan, rows)  # does not wait
loop.follow(plan, following)       # the next plan has one more token of each request, or of some of them
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torch import Tensor

from firesteel.engine.sample.pending import PendingTokens
from firesteel.engine.sample.row import SampleRow
from firesteel.engine.sample.sampler import Sampler
from firesteel.engine.step.batch import lay_out_rows
from firesteel.engine.step.step_store import ReadyStep, StepStore
from firesteel.engine.transfer import upload_ints
from firesteel.types import Plan, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class StepObserver:
    """Callbacks of `Engine.step`."""

    on_plan: Callable[[Plan], None] = lambda plan: None  # with each plan, before it is computed
    before_launch: Callable[[], None] = lambda: None  # right before and after a decode step is launched
    after_launch: Callable[[], None] = lambda: None


UNOBSERVED = StepObserver()


@dataclass(slots=True)
class StepsInFlight:
    """Decode steps that were launched one after the other and whose tokens were not read yet.

    Until it is closed, the next step may follow the last one on the device without a new upload of inputs.
    """

    last: Plan | None = None  # most recently launched; None once closed
    launched: deque[tuple[Plan, PendingTokens]] = field(default_factory=deque)

    def add(self, plan: Plan, pending: PendingTokens) -> None:
        self.last = plan
        self.launched.append((plan, pending))

    def close(self) -> None:
        self.last = None

    def drop_unwanted(self, is_wanted: Callable[[Plan], bool]) -> None:
        """Drops the oldest steps while none of their requests is left, since their tokens are not needed."""
        while self.launched and not is_wanted(self.launched[0][0]):
            self.launched.popleft()


class DecodeLoop:
    """Decode steps of the same requests, launched one after the other."""

    def __init__(self, store: StepStore, sampler: Sampler) -> None:
        self.store = store
        self.sampler = sampler
        self._ready: ReadyStep | None = None
        self._is_fresh = False

    @property
    def current(self) -> ReadyStep:
        """The most recently launched step."""
        assert self._ready is not None
        return self._ready

    @staticmethod
    def takes(plan: Plan) -> bool:
        """Returns whether every request has one token to compute, and drafted ones, and draws the next."""
        return all(_decodes(span) for span in plan.spans)

    def begin(self, plan: Plan, token_ids: Tensor | None = None) -> None:
        """Finds the step for `plan` and uploads its inputs.

        `token_ids` [R] on the device are the tokens to compute, if the host does not know them yet.
        """
        store = self.store
        longest = max(span.end + len(span.draft_ids) for span in plan.spans)
        ready = store.find(plan.num_tokens, longest)
        if token_ids is not None and token_ids.data_ptr() == ready.step.result.token_ids.data_ptr():
            token_ids = token_ids.clone()  # the load overwrites the step's own
        ready.step.load(lay_out_rows(plan, store.page_size), token_ids)
        self._ready, self._is_fresh = ready, True

    def follow(self, last: Plan, plan: Plan) -> None:
        """Prepares `plan`, which has one more token of some or all requests of `last`, the plan launched last."""
        current = self.current
        has_room = max(span.end for span in plan.spans) <= current.num_tokens
        if len(plan.spans) < len(last.spans) or not has_room:
            self.begin(plan, keep_rows(last, plan, current.step.result.token_ids))

    def launch(self, plan: Plan, rows: Iterable[SampleRow], observer: StepObserver = UNOBSERVED) -> PendingTokens:
        """Launches the step. `rows` are read while the device computes, because masks take time."""
        step = self.current.step
        if not self._is_fresh:
            self._add_pages(plan)
        self._is_fresh = False
        observer.before_launch()
        logits = self.current.launch()
        observer.after_launch()
        drawing = list(rows)
        if all(row.is_plain for row in drawing):
            return PendingTokens.begin_plain(drawing, step.result)
        count = len(drawing)
        sampled = self.sampler.sample(logits[:count], drawing, step.result.best[:count])
        if not plan.has_drafts:  # the step after one that verifies drafts is loaded
            step.feed(sampled.token_ids)
        return sampled.fetch()

    def _add_pages(self, plan: Plan) -> None:
        """Uploads the new page of each request whose token is the first of a page."""
        size = self.store.page_size
        begun = [(row, span) for row, span in enumerate(plan.spans) if span.start % size == 0]
        if not begun:
            return
        numbers = [
            (row, span.start // size, span.full_pages[span.start // size], span.window_pages[span.start // size])
            for row, span in begun
        ]
        rows, columns, full, window = upload_ints(list(zip(*numbers, strict=True)), self.store.device.torch_device)
        self.current.step.add_pages(rows, columns, full, window)


def keep_rows(last: Plan, plan: Plan, values: Tensor) -> Tensor:
    """Returns those of `values`, one per request of `last`, that belong to requests of `plan`."""
    rows = {id(span.token_ids): row for row, span in enumerate(last.spans)}
    kept = [rows[id(span.token_ids)] for span in plan.spans]
    return values[: len(last.spans)] if len(kept) == len(rows) else values[upload_ints(kept, values.device)]


def _decodes(span: Span) -> bool:
    is_scored = span.request.wants_prompt_logits and span.start < span.request.num_prompt
    return span.end - span.start == 1 and span.samples and not is_scored
