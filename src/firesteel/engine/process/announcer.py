"""A scheduler that tells each plan before it is computed; knows nobody who listens."""

from __future__ import annotations

from collections.abc import Callable

from firesteel.engine.schedule.scheduler import Scheduler
from firesteel.types import Plan


class AnnouncingScheduler(Scheduler):
    """Tells each plan before it is computed: a fault of the device may take the process with it."""

    announce: Callable[[Plan], None]

    @classmethod
    def like(cls, other: Scheduler, announce: Callable[[Plan], None]) -> AnnouncingScheduler:
        made = cls(
            other.tables, other.config, max_context=other.max_context, max_prompt_logits=other.max_prompt_logits,
            find_room=other.find_room, clock=other.clock,
        )  # fmt: skip
        made.announce = announce
        return made

    def next(self) -> Plan:
        plan = super().next()
        if plan.spans:
            self.announce(plan)
        return plan

    def go_on(self, plan: Plan) -> Plan | None:
        following = super().go_on(plan)
        if following is not None:
            self.announce(following)
        return following
