"""How near a router was to choosing other experts, and how far two runs moved it."""

DEVIATIONS = 4  # of the difference of two logits, each moved as the others of the token are


def gaps_and_movements(ours, theirs, active):
    """Of `[T, E]` logits of two runs, `[T]` each: theirs of rank A less that of A + 1, and how far it may move.

    The second is measured on all experts of the token: a router that is right parts within it, and a wrong one too:
    whoever asks sets a bound of his own.
    """
    best = theirs.topk(active + 1)[0]
    return best[:, -2] - best[:, -1], DEVIATIONS * 2**0.5 * (ours - theirs).std(-1)
