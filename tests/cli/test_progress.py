"""Bars of loading: bytes read, then captured steps."""

import contextlib

import pytest

from firesteel.cli import progress


@pytest.fixture
def events(monkeypatch):
    """Events of the bars, in order."""
    seen = []

    @contextlib.contextmanager
    def told(label, *, in_bytes=False):
        seen.append(f"{label} opens")
        yield lambda done, total: seen.append(f"{label} {done}/{total}")
        seen.append(f"{label} closes")

    monkeypatch.setattr(progress, "progress_bar", told)
    return seen


def test_bar_of_captured_steps_replaces_that_of_bytes_read(events):
    with progress.loading_bars() as (read, captured):
        read(5, 5)
        captured(1, 2)
        captured(2, 2)
    first, second = "loading weights", "preparing kernels and steps"
    assert events == [
        f"{first} opens",
        f"{first} 5/5",
        f"{first} closes",
        f"{second} opens",
        f"{second} 1/2",
        f"{second} 2/2",
        f"{second} closes",
    ]


def test_without_captured_steps_there_is_one_bar(events):
    with progress.loading_bars() as (read, _):
        read(1, 2)
    assert events == ["loading weights opens", "loading weights 1/2", "loading weights closes"]
