"""The version of Triton that tests run with."""

import pytest


def find_triton_version():
    """Returns its first two numbers; skips the test without Triton."""
    triton = pytest.importorskip("triton")
    return tuple(int(part) for part in triton.__version__.split(".")[:2])
