"""Skips single tests where a package is missing, as on a GPU machine that lacks those of the server.

A module that skips itself or cannot be imported ends a pytest run that names one of its tests.
"""

import importlib.util

import pytest


def needs_packages(*names):
    """Returns the mark of tests that need the packages."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs the packages {', '.join(missing)}")
