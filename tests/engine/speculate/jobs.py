"""Decoding jobs without pages, for tests of speculation."""

from firesteel.engine.schedule.job import Job
from firesteel.types import Plan, Request, SamplingParams

CHEAP, DEAR = {1: 1.0, 8: 1.1}, {1: 1.0, 2: 50.0}  # milliseconds by rows


class Table:
    """Pages of a job, which nothing here reads."""

    def __init__(self):
        self.pages = {"full": range(100), "window": range(100)}


class Mask:
    """Allows even tokens."""

    def count_allowed(self, token_ids, draft_ids):
        return next((place for place, token in enumerate(draft_ids) if token % 2), len(draft_ids))


def new_job(name, token_ids, mask=None):
    request = Request(request_id=name, token_ids=[], params=SamplingParams(), mask=mask)
    job = Job(request, list(token_ids), Table())
    job.num_computed = len(token_ids) - 1
    return job


def plan_of(*jobs):
    return Plan(spans=[job.span(len(job.token_ids)) for job in jobs])
