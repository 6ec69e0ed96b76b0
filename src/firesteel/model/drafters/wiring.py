"""Recognises a drafter that reads the wrong states of its target by how few of its tokens are accepted."""

from __future__ import annotations

FEWEST_DRAFTS = 100  # before which a rate says little
# Published heads have 0.6 to 0.8 of their first tokens accepted, mis-wired ones about 0.1: a length of about 1.1
# (sgl-project/sglang issue 32226).
LOWEST_RATE = 0.25


def suspect_wiring(acceptance_at_1: float, num_drafted: int) -> str | None:
    """Returns a warning if the first tokens of `num_drafted` drafts are accepted so rarely that it is miswired."""
    if num_drafted < FEWEST_DRAFTS or acceptance_at_1 >= LOWEST_RATE:
        return None
    return (
        f"only {acceptance_at_1:.0%} of {num_drafted} first drafted tokens were accepted; drafters that fit have "
        "60 to 80 %, those that read wrong states of the target about 10 %: is this the head of another model or "
        "version? Compare eagle_aux_hidden_state_layer_ids (numbers off by one: n is the state before layer n) "
        "and the norms (norm_before_fc, fc_norm, use_aux_hidden_state) in its config.json with its publisher's; a "
        "text unlike its training text costs acceptance too"
    )
