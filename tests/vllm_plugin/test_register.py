import logging
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from firesteel.config import resolve
from firesteel.errors import UserError
from firesteel.vllm_plugin.refusal.refused import RefusedGptOss, RefusedGptOssConfig
from firesteel.vllm_plugin.register import ARCHITECTURE, MODEL, REFUSED_MODEL, register
from tests.vllm_plugin.stand_in import OurHook, StandInVllm, put_our_hook

ROOT = Path(__file__).parents[2]
LLAMA = ("stock llama", "stock llama hook")


@pytest.fixture
def our_hook(monkeypatch):
    monkeypatch.delenv("FIRESTEEL_VLLM", raising=False)
    put_our_hook(monkeypatch)


def registered(vllm):
    return str(vllm.models[ARCHITECTURE]), vllm.hooks[ARCHITECTURE]


@pytest.mark.parametrize("version", ["0.26.0", "0.28.0", "0.30.0", "0.32.0", "0.28.0+cpu"])
def test_tested_version_gets_our_model_without_a_warning(version, our_hook, monkeypatch, caplog):
    vllm = StandInVllm(monkeypatch, version)
    register()
    assert registered(vllm) == (MODEL, OurHook)
    assert (vllm.models["LlamaForCausalLM"], vllm.hooks["LlamaForCausalLM"]) == LLAMA
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_registering_again_changes_nothing(our_hook, monkeypatch):
    vllm = StandInVllm(monkeypatch)
    register()
    register()
    assert registered(vllm) == (MODEL, OurHook)


def test_class_is_inspected_in_the_process_that_asks(our_hook, monkeypatch):
    vllm = StandInVllm(monkeypatch)
    register()
    module = ModuleType("firesteel.vllm_plugin.model")
    module.FiresteelGptOss = type("FiresteelGptOss", (), {})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert vllm.models[ARCHITECTURE].inspect_model_cls() == "inspected FiresteelGptOss"


@pytest.mark.parametrize(
    ("version", "support"),
    [
        ("0.28.3", "not tested, but a patch release"),
        ("0.33.0", "its Python files tested on a CPU, with torch 2.13 and the compiled part of vLLM 0.32"),
    ],
)
def test_version_that_is_not_wholly_tested_gets_our_model_with_a_warning(
    version, support, our_hook, monkeypatch, caplog
):
    vllm = StandInVllm(monkeypatch, version)
    register()
    assert registered(vllm) == (MODEL, OurHook)
    assert f"vLLM {version}: {support}" in caplog.text


@pytest.mark.parametrize("version", ["0.27.0", "0.34.0", "0.28.1.dev5+g0123", "dev"])
def test_other_version_refuses_gpt_oss_only(version, our_hook, monkeypatch):
    vllm = StandInVllm(monkeypatch, version)
    register()
    assert registered(vllm) == (REFUSED_MODEL, RefusedGptOssConfig)
    assert (vllm.models["LlamaForCausalLM"], vllm.hooks["LlamaForCausalLM"]) == LLAMA
    for load in (
        lambda: RefusedGptOss(vllm_config=None),
        lambda: RefusedGptOssConfig.verify_and_update_model_config(None),
        lambda: RefusedGptOssConfig.verify_and_update_config(None),
    ):
        with pytest.raises(UserError) as raised:
            load()
        assert f"vLLM {version} is not supported (supported: 0.26, 0.28, 0.30, 0.32, 0.33)" in str(raised.value)
        assert "FIRESTEEL_VLLM=off" in str(raised.value)


def test_version_without_config_hooks_is_refused_by_the_model(our_hook, monkeypatch):
    vllm = StandInVllm(monkeypatch, "0.8.0", has_hooks=False)
    register()
    assert str(vllm.models[ARCHITECTURE]) == REFUSED_MODEL


def test_switched_off_leaves_the_model_of_vllm(our_hook, monkeypatch):
    monkeypatch.setenv("FIRESTEEL_VLLM", "off")
    vllm = StandInVllm(monkeypatch)
    register()
    assert registered(vllm) == ("stock", "stock hook")


def test_meaningless_switch_is_refused(our_hook, monkeypatch):
    """A misspelt `off` must not pass for on, nor end vLLM for other models."""
    monkeypatch.setenv("FIRESTEEL_VLLM", "of")
    vllm = StandInVllm(monkeypatch)
    register()
    assert registered(vllm) == (REFUSED_MODEL, RefusedGptOssConfig)
    with pytest.raises(UserError, match="FIRESTEEL_VLLM='of': must be on or off"):
        RefusedGptOss(vllm_config=None)


def test_broken_plugin_is_refused_with_its_error(our_hook, monkeypatch):
    """vLLM hides an error while a plugin is imported and would run its own gpt-oss."""
    vllm = StandInVllm(monkeypatch)
    monkeypatch.setitem(sys.modules, "firesteel.vllm_plugin.config", None)
    register()
    assert registered(vllm) == (REFUSED_MODEL, RefusedGptOssConfig)
    with pytest.raises(
        UserError, match=r"cannot be imported in vLLM 0\.28\.0: ModuleNotFoundError.*FIRESTEEL_VLLM=off"
    ):
        RefusedGptOss(vllm_config=None)


def test_switch_is_not_an_unknown_variable():
    assert resolve(environ={"FIRESTEEL_VLLM": "off"}).config == resolve(environ={}).config


def test_entry_point_names_a_function_that_needs_neither_vllm_nor_torch():
    """vLLM imports it in each process, for every model."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["entry-points"]["vllm.general_plugins"]["firesteel"].partition(":")
    code = f"import sys, {module}; assert callable({module}.{name}); print({{'vllm', 'torch'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "set()"
