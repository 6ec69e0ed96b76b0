"""Recognises a drafter that reads the wrong states of its target by how few of its tokens are accepted."""

from __future__ import annotations

from math import sqrt

FEWEST_DRAFTS = 100  # before which a rate alone says little
FEWEST_SURE = 20  # before which nothing is said: less if drafts are left out, as they are where they do not pay
# Published heads have 0.6 to 0.8 of their first tokens accepted, mis-wired ones about 0.1: a length of about 1.1
# (sgl-project/sglang issue 32226).
LOWEST_RATE = 0.25
# Share of its usual rate that a drafter keeps on any text. Kindling's head has 0.70, with states (0, 1, 2) in place
# of (4, 6, 8) 0.40. Its target's states change slowly: one layer early or late it has 0.65 and 0.69, which no rate
# tells from another text.
LOWEST_SHARE = 0.65


def suspect_wiring(acceptance_at_1: float, num_drafted: int, usual: float | None = None) -> str | None:
    """Returns a warning if the first tokens of `num_drafted` drafts are accepted so rarely that it is miswired.

    `usual` is the rate that the drafter is known to have, if it is.
    """
    lowest = LOWEST_RATE if usual is None else max(LOWEST_RATE, LOWEST_SHARE * usual)
    is_many = num_drafted >= FEWEST_DRAFTS and acceptance_at_1 < lowest
    is_sure = num_drafted >= FEWEST_SURE and bound_rate(acceptance_at_1, num_drafted) < lowest
    if not is_many and not is_sure:
        return None
    fitting = "drafters that fit have 60 to 80 %" if usual is None else f"this drafter usually has {usual:.0%}"
    return (
        f"only {acceptance_at_1:.0%} of {num_drafted} first drafted tokens were accepted; {fitting}, those that "
        "read wrong states of the target about 10 %: is this the head of another model or version? Compare "
        "eagle_aux_hidden_state_layer_ids (numbers off by one: n is the state before layer n) and the norms "
        "(norm_before_fc, fc_norm, use_aux_hidden_state) in its config.json with its publisher's; a text unlike "
        "its training text costs acceptance too"
    )


def bound_rate(rate: float, count: int) -> float:
    """Returns what a rate seen in `count` cases is at most, with 2 standard deviations (Agresti and Coull)."""
    middle = (rate * count + 2) / (count + 4)
    return middle + 2 * sqrt(middle * (1 - middle) / (count + 4))
