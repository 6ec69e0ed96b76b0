"""Which states of the target a published Eagle3 head reads.

The config names layers by the residual that they read; the number of layers is the residual after the last one.
This is the numbering of `Taps`. Some heads read the state after the target's final norm instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firesteel.model.drafters.errors import DrafterError
from firesteel.untrusted.json_file import shorten

IDS = "eagle_aux_hidden_state_layer_ids"
DEFAULT_STATES = 3


@dataclass(frozen=True, slots=True)
class TargetStates:
    """Boundaries of the target, and whether its final norm is applied to the last, and only, one."""

    boundaries: tuple[int, ...]
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedHead:
    """What is known of a head whose config may be silent."""

    boundaries: tuple[int, ...] | None  # None: the state after the final norm
    most_tokens: int | None = None


# By the end of the repository's name; measured in sgl-project/sglang pull request 32334.
PUBLISHED = {
    "gpt-oss-120b-eagle3-v3": PublishedHead(boundaries=(24, 30, 36)),
    "gpt-oss-120b-eagle3-long-context": PublishedHead(boundaries=(1, 17, 32)),
    "gpt-oss-120b-eagle3-short-context": PublishedHead(boundaries=None),
    "gpt-oss-120b-eagle3-throughput": PublishedHead(boundaries=None, most_tokens=1),  # trained for one token
}


def find_published(directory: Path, name_or_path: object) -> PublishedHead | None:
    """Looks a head up by its folder, the folders above (a snapshot in a cache), or the name in its config."""
    names = [*directory.absolute().parts[-4:], *directory.resolve().parts[-4:], str(name_or_path)]
    lower = [name.rstrip("/").lower() for name in names]
    return next(
        (head for known, head in PUBLISHED.items() if any(name.endswith(known) for name in lower)),
        None,
    )


def find_states(
    ids: Any, uses_states: bool | None, published: PublishedHead | None, num_inputs: int | None, num_layers: int
) -> TargetStates:
    """Returns the states that a head reads; errors lack the name of the file.

    `ids` and `uses_states` are the config's, None if it is silent. `num_inputs` are the states that fc reads, None
    without fc.
    """
    if uses_states is False:
        return _find_final(num_inputs, num_layers, "use_aux_hidden_state is false")
    if not ids and published is not None:
        if published.boundaries is None:
            return _find_final(num_inputs, num_layers, "the head of this name reads the final state")
        ids = published.boundaries
    if not ids and num_inputs in (None, 1):
        return _find_final(num_inputs, num_layers, "")
    if not ids and num_inputs == DEFAULT_STATES:
        ids = (2, num_layers // 2, num_layers - 3)
    if not ids:
        raise DrafterError(
            f"fc.weight reads {num_inputs} states, but the config does not say which: add {IDS} with {num_inputs} "
            "layers"
        )
    _check_ids(ids, num_layers)
    if (num_inputs or 1) != len(ids):
        reader = f"fc.weight reads {num_inputs} states" if num_inputs else "fc.weight is missing"
        raise DrafterError(
            f"{IDS} = {shorten(list(ids))} names {len(ids)} states of the target, but {reader}: "
            "take config and weights from one download"
        )
    return TargetStates(tuple(ids), False)


def _find_final(num_inputs: int | None, num_layers: int, why: str) -> TargetStates:
    if num_inputs not in (None, 1):
        raise DrafterError(
            f"{why}, so it is one, but fc.weight reads {num_inputs} states: take config and weights from one "
            "download"
        )
    return TargetStates((num_layers,), True)


def _check_ids(ids: Sequence[Any], num_layers: int) -> None:
    is_list = isinstance(ids, list | tuple) and all(type(number) is int for number in ids)
    if not is_list or list(ids) != sorted(set(ids)):
        raise DrafterError(f"{IDS} = {shorten(ids)}: must be a list of rising layer numbers")
    if not 0 <= ids[0] <= ids[-1] <= num_layers:
        raise DrafterError(
            f"{IDS} = {shorten(ids)}: the target has {num_layers} layers, so its states are 0 to {num_layers}: "
            "is this the head of another model?"
        )
