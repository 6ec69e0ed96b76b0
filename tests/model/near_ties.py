"""How near a router was to choosing other experts, and how far two runs moved it."""

import torch

DEVIATIONS = 4  # of the difference of two logits, each moved as the others of the token are


def gaps_and_movements(ours, theirs, active):
    """Of `[T, E]` logits of two runs, `[T]` each: theirs of rank A less that of A + 1, and how far it may move.

    The second is measured on all experts of the token: a router that is right parts within it, and a wrong one too:
    whoever asks sets a bound of his own.
    """
    best = theirs.topk(active + 1)[0]
    return best[:, -2] - best[:, -1], DEVIATIONS * 2**0.5 * (ours - theirs).std(-1)


def compare_choices(actual, expected, *, num_layers, active, bounds):
    """Of all (token, layer) of two runs: the share whose expert sets agree, and that with those that are explained.

    Runs have `routes`, (ids, weights), and `logits`, `[T, E]`, of each layer of each step. A gap is explained up to
    the first of the bounds, and up to the second where the token's logits moved so far. A token that other experts
    have changed is not the same in the layers above: only its first parting counts.
    """
    agree, explained, parted = [], [], None
    for number, (ours, theirs) in enumerate(zip(actual.logits, expected.logits, strict=True)):
        sets = [ids.sort(-1)[0] for ids in (actual.routes[number][0], expected.routes[number][0])]
        same = (sets[0] == sets[1]).all(-1)
        gap, moved = gaps_and_movements(ours, theirs, active)
        if number % num_layers == 0:
            parted = torch.zeros_like(same)
        agree.append(same)
        explained.append(same | parted | (gap <= moved.clamp(*bounds)))
        parted = parted | ~same
    return float(torch.cat(agree).float().mean()), float(torch.cat(explained).float().mean())
