"""The limit of open files, and how many connections it allows."""

import resource

import pytest

from firesteel.server.run import raise_connection_limit


@pytest.mark.parametrize(
    ("limits", "raised", "connections"),
    [
        ((1024, 1 << 20), [(4352, 1 << 20)], 4096),
        ((1024, 2048), [(2048, 2048)], 1792),
        ((1024, resource.RLIM_INFINITY), [(4352, resource.RLIM_INFINITY)], 4096),
        ((65536, 65536), [], 4096),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), [], 4096),
        ((100, 100), [], 1),
    ],
)
def test_connections_are_limited_by_open_files_whose_limit_is_raised(monkeypatch, limits, raised, connections):
    calls = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: calls.append(limits))
    assert raise_connection_limit() == connections and calls == raised
