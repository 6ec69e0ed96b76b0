"""Keys of op calls: everything that determines which implementation accepts the arguments."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torch import Tensor

ALIGNMENT = 16  # bytes; needed by kernels that read several values at a time
PLAIN = frozenset((str, int, float, bool, type(None)))
UNDESCRIBED = object()


class Described:
    """Base of frozen dataclasses of tensors that ops take as one argument.

    Its fields are described once, so their shapes, strides and addresses must not change afterwards; operands are
    described at every call, unless they outlive it.
    """

    __slots__ = ("_description",)

    def describe(self) -> Hashable:
        """Returns the key of the fields, made once, or None if there is none."""
        description: Hashable = getattr(self, "_description", UNDESCRIBED)
        if description is UNDESCRIBED:
            description = self.describe_anew()
            object.__setattr__(self, "_description", description)
        return description

    def describe_anew(self) -> Hashable:
        """Returns the key of the fields as they are now; keeps nothing."""
        kind: Any = type(self)
        return make_key(_field_reader(kind)(self))

    _description: Hashable


@functools.cache
def _field_reader(kind: type) -> Callable[[object], tuple[Any, ...]]:
    """Returns a function that reads all fields of a dataclass, several times faster than `getattr` of each."""
    names = [part.name for part in dataclasses.fields(kind)]
    read = operator.attrgetter(*names)
    return read if len(names) > 1 else lambda described: (read(described),)


def make_key(args: Sequence[Any]) -> Hashable:
    """Returns a key that equal calls share, or None if the arguments have none.

    The key covers shape, strides, type and device of tensors, which all begin at a multiple of 16 bytes, and the
    value of everything else. It does not cover the values of tensors.
    """
    if len(args) == 1 and isinstance(args[0], Described):
        return args[0].describe()
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
