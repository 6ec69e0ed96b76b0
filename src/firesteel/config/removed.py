"""Settings removed in this version: each is accepted with a warning, and will be unknown in the next version."""

from __future__ import annotations

from firesteel.config.environment import PREFIX

# name -> what holds instead
REMOVED = {
    "load_workers": "8 threads read a checkpoint",
    "engine_restart_window_s": "engine_restarts counts over 600 s",
    "max_connections": "4096 connections may be open, or as many as the file limit (ulimit -n) allows",
    "body_timeout_s": "a request body has 30 s to arrive",
    "capture_at_start": "serve makes all kernels and steps at start (prepare)",
}


class RemovedSettingWarning(FutureWarning):
    """Warns of a removed setting that was given and has no effect."""


def variable_of(name: str) -> str:
    """Returns the environment variable of a setting."""
    return PREFIX + name.upper()
