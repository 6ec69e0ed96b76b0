from types import SimpleNamespace

import pytest

from firesteel.errors import UserError
from firesteel.vllm_plugin import same_plugin
from firesteel.vllm_plugin.same_plugin import WORKER, check_mark, mark_config


def new_config(additional):
    return SimpleNamespace(additional_config=additional, parallel_config=SimpleNamespace(worker_extension_cls=""))


@pytest.mark.parametrize("additional", [{}, None, {"other": 1}])
def test_marked_configuration_passes_and_keeps_what_the_user_gave(additional):
    config = new_config(additional)
    mark_config(config)
    check_mark(config)
    assert config.parallel_config.worker_extension_cls == WORKER
    assert (additional or {}).items() <= config.additional_config.items()


@pytest.mark.parametrize("additional", [{}, None, {"other": 1}, object()])
def test_main_process_without_the_plugin_is_refused(additional):
    with pytest.raises(UserError, match=r"main process runs without it: .* FIRESTEEL_VLLM alike"):
        check_mark(new_config(additional))


def test_another_version_in_the_main_process_is_refused(monkeypatch):
    config = new_config({})
    mark_config(config)
    monkeypatch.setattr(same_plugin, "find_version", lambda: "9.9")
    with pytest.raises(UserError, match=r"this worker has firesteel 9\.9, but vLLM's main process has"):
        check_mark(config)
