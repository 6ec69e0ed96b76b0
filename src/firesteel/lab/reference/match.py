"""Checks that a recorded reference and the served model are the same model with the same tokens."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.lab.reference.recorded import CURE, RecordedReference, key_of
from firesteel.lab.reference.reference import ReferenceFailed
from firesteel.lab.reference.texts import PROBE, TextEncoder
from firesteel.lab.servers.target import Target


def check_same_model(target: Target, reference: RecordedReference, encoder: TextEncoder | None) -> None:
    """Raises ReferenceFailed for another model or tokenizer; without an encoder only names are compared."""
    served = {key_of(name) for name in (target.model, target.api.model) if name}
    if not served & reference.model_keys:
        raise ReferenceFailed(
            f"the reference is of {' or '.join(sorted(reference.model_keys))}, this server has "
            f"{' or '.join(sorted(served))}: if it is the same model, name it by --model, else {CURE}"
        )
    if encoder is not None and not is_same_text(encoder.encode(PROBE), reference.probe_ids):
        raise ReferenceFailed(
            f"the reference, {reference.name}, has another tokenizer than {target.model}, so its tokens mean other "
            f"texts: {CURE}, from this checkpoint"
        )


def is_same_text(ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Compares tokens; one side may have a token at the start that marks it."""
    shorter, longer = sorted((list(ours), list(theirs)), key=len)
    return bool(shorter) and len(longer) - len(shorter) <= 1 and longer[-len(shorter) :] == shorter
