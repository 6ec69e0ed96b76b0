"""Requests that arrive while an engine serves others."""


def serve(engine, requests, *, at=None, cancel=None):
    """Returns outputs by request; i is submitted before step at[i], a name is cancelled after cancel[name]."""
    made = {request.request_id: [] for request in requests}
    arrivals = sorted(zip(at or [0] * len(requests), range(len(requests)), strict=True))
    step = 0
    while arrivals or engine.has_work:
        while arrivals and arrivals[0][0] <= step:
            engine.submit(requests[arrivals.pop(0)[1]])
        for output in engine.step():
            made[output.request_id].append(output)
        for name, when in (cancel or {}).items():
            if when == step:
                engine.cancel(name)
        step += 1
    return made


def tokens(made):
    return {name: [token for output in outputs for token in output.token_ids] for name, outputs in made.items()}
