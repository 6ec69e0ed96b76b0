"""Batch invariance: the choice of the one implementation whose rows do not depend on each other.

Two such implementations may still give a row different bits. So exactly one is chosen per op, and a call that it
refuses is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from firesteel.device import DeviceSpec
from firesteel.errors import KernelError

if TYPE_CHECKING:
    from firesteel.kernels.op.op import Implementation, Op

FLAG = "--batch-invariant"
INVARIANT = ":invariant"  # ends the names of implementations that exist for this alone


def keep_invariant(
    op: Op[Any, Any], device: DeviceSpec, asked: str | None, asked_for: Sequence[Implementation[Any, Any]] | None
) -> Implementation[Any, Any]:
    """Returns the implementation that computes all calls.

    It is the first row-invariant one of `asked_for`, the runnable implementations that the user's choice `asked`
    names, or of all runnable ones.
    """
    usable = [way for way in list_invariant(op) if way.needs(device) is None]
    wanted = usable if asked_for is None else [way for way in usable if way in asked_for]
    if wanted:
        return wanted[0]
    if asked_for is not None:
        cure = f"choose {op.name}={usable[0].name}, or leave it out" if usable else f"leave {FLAG} out"
        raise KernelError(
            f"{op.name}={asked} does not promise the same bits in every batch, which {FLAG} asks for: {cure}"
        )
    whys = "; ".join(f"{way.name} {way.needs(device)}" for way in list_invariant(op))
    raise KernelError(f"{FLAG}: {op.name} has no batch-invariant implementation here: {whys or 'none is declared'}")


def list_invariant(op: Op[Any, Any]) -> list[Implementation[Any, Any]]:
    """Lists the row-invariant implementations; the reference comes last."""
    ways = list(op.implementations.values())
    return [way for way in (*ways[1:], ways[0]) if way.is_row_invariant]
