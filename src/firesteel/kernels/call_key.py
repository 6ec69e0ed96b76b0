"""Keys of op calls: everything that decides which implementation accepts the arguments."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

ALIGNMENT = 16  # bytes; needed by kernels that read several values at a time
PLAIN = frozenset((str, int, float, bool, type(None)))


class Described:
    """Base of frozen dataclasses of tensors that ops take as one argument.

    Its fields are described once, so their shapes, strides and addresses must not change afterwards.
    """

    __slots__ = ("_description",)

    def describe(self) -> Hashable:
        """Returns the key of the fields, or None if there is none."""
        try:
            return self._description
        except AttributeError:
            names = self.__dataclass_fields__  # type: ignore[attr-defined]
            key = make_key([getattr(self, name) for name in names])
            object.__setattr__(self, "_description", key)
            return key

    _description: Hashable


def make_key(args: Sequence[Any]) -> Hashable:
    """Returns a key that equal calls share, or None if the arguments have none.

    The key covers shape, strides, type and device of tensors, which all begin at a multiple of 16 bytes, and the
    value of everything else. It does not cover the values of tensors.
    """
    key: list[Hashable] = []
    add = key.append
    addresses = 0
    for arg in args:
        kind = type(arg)
        if kind is Tensor:
            addresses |= arg.data_ptr()
            add(arg.shape)
            add(arg.stride())
            add(arg.dtype)
            add(arg.device)
        elif kind in PLAIN:
            add(arg)
        elif isinstance(arg, Described) and (description := arg.describe()) is not None:
            add(description)
        else:
            return None
    return None if addresses % ALIGNMENT else tuple(key)
