import pytest

from firesteel.vllm_plugin.refusal import state as module
from firesteel.vllm_plugin.refusal.state import find_state
from firesteel.vllm_plugin.refusal.versions import judge_version


@pytest.fixture
def installed(monkeypatch):
    """installed("0.28.0"): this vLLM and our entry point are there."""

    def install(text, *, has_entry_point=True):
        monkeypatch.setattr(module, "find_installed", lambda: None if text is None else judge_version(text))
        monkeypatch.setattr(module.importlib.metadata, "entry_points", lambda **wanted: [wanted] * has_entry_point)

    return install


def test_no_vllm_has_no_state(installed):
    installed(None)
    assert find_state({}) is None


def test_support_of_a_version_without_a_cpu_build_is_shown(installed):
    installed("0.33.0")
    words = "vLLM 0.33.0 (its Python files tested on a CPU, with torch 2.13 and the compiled part of vLLM 0.32)"
    assert find_state({}).words.startswith(words) and find_state({}).is_active


@pytest.mark.parametrize("environ", [{}, {"FIRESTEEL_VLLM": "on"}, {"VLLM_PLUGINS": "other,firesteel"}])
def test_supported_version_is_active(installed, environ):
    installed("0.28.0")
    state = find_state(environ)
    assert state.is_active and not state.is_refused
    assert state.words == "vLLM 0.28.0 (tested on a CPU); the plugin is active for gpt-oss"


@pytest.mark.parametrize(
    ("environ", "words"),
    [({"FIRESTEEL_VLLM": "off"}, "FIRESTEEL_VLLM=off"), ({"VLLM_PLUGINS": ""}, "VLLM_PLUGINS=")],
)
@pytest.mark.parametrize("version", ["0.28.0", "0.99.0"])
def test_switched_off_is_neither_active_nor_refused(installed, environ, words, version):
    installed(version)
    state = find_state(environ)
    assert not state.is_active and not state.is_refused and words in state.words and state.cure


def test_sources_without_an_entry_point_are_not_active(installed):
    installed("0.28.0", has_entry_point=False)
    state = find_state({})
    assert not state.is_active and not state.is_refused and "pip install firesteel" in state.cure


@pytest.mark.parametrize(
    ("version", "environ", "cure"),
    [("0.27.0", {}, "FIRESTEEL_VLLM=off"), ("0.28.0", {"FIRESTEEL_VLLM": "of"}, "must be on or off")],
)
def test_refused_gpt_oss_is_shown_with_the_cure(installed, version, environ, cure):
    installed(version)
    state = find_state(environ)
    assert state.is_refused and not state.is_active and cure in state.cure
