"""Measures how close a router was to choosing other experts, and how far apart two runs are."""

import torch

DEVIATIONS = 4  # standard deviations of the difference of two logits, if both move as the token's other logits do


def gaps_and_movements(ours, theirs, active):
    """Returns two `[T]` tensors from the `[T, E]` logits of two runs: gaps and movements.

    The gap is the logit of rank A minus that of rank A + 1 in `theirs`; the movement is how far the gap may move.
    The movement is measured on all experts of the token, so it is large for a wrong router too: callers set a
    bound.
    """
    best = theirs.topk(active + 1)[0]
    return best[:, -2] - best[:, -1], DEVIATIONS * 2**0.5 * (ours - theirs).std(-1)


def compare_choices(actual, expected, *, num_layers, active, bounds):
    """Returns the share of all (token, layer) whose expert sets agree, and the share that agree or are explained.

    Runs have `routes`, (ids, weights), and `logits`, `[T, E]`, per layer and step. A difference is explained by a
    gap up to the first bound, or up to the second if the token's logits moved that far. After other experts have
    changed a token, it differs in all later layers, so only its first difference counts.
    """
    agree, explained, differed = [], [], None
    for number, (ours, theirs) in enumerate(zip(actual.logits, expected.logits, strict=True)):
        sets = [ids.sort(-1)[0] for ids in (actual.routes[number][0], expected.routes[number][0])]
        same = (sets[0] == sets[1]).all(-1)
        gap, moved = gaps_and_movements(ours, theirs, active)
        if number % num_layers == 0:
            differed = torch.zeros_like(same)
        agree.append(same)
        explained.append(same | differed | (gap <= moved.clamp(*bounds)))
        differed = differed | ~same
    return float(torch.cat(agree).float().mean()), float(torch.cat(explained).float().mean())
