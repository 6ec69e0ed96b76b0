"""Panics of Rust libraries become exceptions; everything else passes unchanged."""

import pytest

from firesteel.untrusted.panics import is_panic, panics_as

PanicException = type("PanicException", (BaseException,), {})


def test_panic_becomes_the_given_exception():
    with pytest.raises(ValueError, match="it failed: index 5") as caught, panics_as(ValueError, "it failed"):
        raise PanicException("index 5")
    assert is_panic(caught.value.__cause__)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, KeyError])
def test_other_exceptions_pass(kind):
    with pytest.raises(kind), panics_as(ValueError, "it failed"):
        raise kind
