"""Settings that cannot be combined with batch invariance, refused by name before any weight is read."""

from __future__ import annotations

from firesteel.config import KernelConfig
from firesteel.errors import UserError
from firesteel.kernels.op.invariance import FLAG
from firesteel.kernels.operands.activation import FP8
from firesteel.kernels.tiles.tile_pin import AUTO
from firesteel.kernels.tiles.tuned import NONE
from firesteel.model.decode_ops import split_choices


def check_invariance(config: KernelConfig, *, num_ranks: int = 1) -> None:
    """Raises for the first setting under which the bits of a request would depend on its batch.

    Implementations of ops are refused where they are chosen.
    """
    if not config.batch_invariant:
        return
    for setting, why in _list_conflicts(config, num_ranks):
        raise UserError(f"{FLAG} cannot be combined with {setting}: {why}")


def _list_conflicts(config: KernelConfig, num_ranks: int) -> list[tuple[str, str]]:
    """Lists settings in use, with the reason and the cure."""
    conflicts = []
    for flag, text in (("--kernels", config.kernels), ("--require", config.require)):
        if decode_ops := split_choices(text)[1]:
            conflicts.append(
                (
                    f"{flag} {decode_ops}",
                    "a decode op adds in another order than the ops that compute prompts; leave it out",
                )
            )
    if config.prefill_activation not in (AUTO, config.activation):
        cure = "leave it out" if config.prefill_activation == FP8 else "round all with --activation"
        conflicts.append(
            (
                f"--prefill-activation {config.prefill_activation}",
                f"a token would be rounded otherwise in a prompt than in decoding; {cure}",
            )
        )
    if config.tile != AUTO:
        conflicts.append(
            (f"--tile {config.tile}", "the kernels have one tile each, which is not pinned; leave it out")
        )
    if config.tiles_file not in (AUTO, NONE):
        conflicts.append(
            (f"--tiles-file {config.tiles_file}", "measured tiles depend on the number of tokens; leave it out")
        )
    if num_ranks > 1:
        conflicts.append(
            (
                f"tensor parallelism ({num_ranks} ranks)",
                "the order in which ranks are added depends on the size of the message; use one GPU",
            )
        )
    return conflicts
