"""A stand-in for the parts of vLLM that `register` uses."""

import sys
from types import ModuleType, SimpleNamespace


class StandInVllm:
    """Lies in sys.modules as `vllm`; records what is registered."""

    def __init__(self, monkeypatch, version="0.28.0", *, has_hooks=True):
        self.models = {"GptOssForCausalLM": "stock", "LlamaForCausalLM": "stock llama"}
        self.hooks = {"GptOssForCausalLM": "stock hook", "LlamaForCausalLM": "stock llama hook"}
        registry = SimpleNamespace(register_model=self.models.__setitem__)
        self._add(monkeypatch, "vllm", __version__=version, ModelRegistry=registry)
        self._add(monkeypatch, "vllm.model_executor")
        self._add(monkeypatch, "vllm.model_executor.models")
        table = {"MODELS_CONFIG_MAP": self.hooks} if has_hooks else {}
        self._add(monkeypatch, "vllm.model_executor.models.config", **table)

    @staticmethod
    def _add(monkeypatch, name, **content):
        module = ModuleType(name)
        module.__path__ = []
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


class OurHook:
    """Stands for the config hook, which needs vLLM's own classes."""


def put_our_hook(monkeypatch):
    module = ModuleType("firesteel.vllm_plugin.config")
    module.FiresteelGptOssConfig = OurHook
    monkeypatch.setitem(sys.modules, module.__name__, module)
