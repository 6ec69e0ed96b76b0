import importlib
import sys

import pytest

from firesteel.errors import UserError
from firesteel.vllm_plugin.same_plugin import WORKER
from tests.vllm_plugin.stand_in import StandInVllm, put_our_hook


@pytest.fixture
def load(monkeypatch):
    """load(): imports the worker's class as vLLM does, in a vLLM with our plugin."""
    monkeypatch.delenv("FIRESTEEL_VLLM", raising=False)
    put_our_hook(monkeypatch)
    module, _, name = WORKER.rpartition(".")

    def import_class():
        monkeypatch.delitem(sys.modules, module, raising=False)
        return getattr(importlib.import_module(module), name)

    return import_class


def test_class_adds_no_attribute_to_the_worker(load, monkeypatch):
    """vLLM refuses an extension with an attribute that the worker has."""
    StandInVllm(monkeypatch)
    assert [name for name in dir(load()) if not name.startswith("__")] == []


def test_worker_with_the_plugin_switched_off_is_refused(load, monkeypatch):
    StandInVllm(monkeypatch)
    monkeypatch.setenv("FIRESTEEL_VLLM", "off")
    with pytest.raises(UserError, match="switches the plugin off in this worker"):
        load()


def test_worker_with_another_vllm_is_refused(load, monkeypatch):
    StandInVllm(monkeypatch, "0.27.0")
    with pytest.raises(UserError, match=r"vLLM 0\.27\.0 is not supported"):
        load()
