"""A stand-in for the parts of vLLM that `register` uses."""

import importlib
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace


@dataclass(frozen=True)
class StandInEntry:
    """A model that vLLM has registered by its name."""

    module_name: str
    class_name: str

    def __str__(self):
        return f"{self.module_name}:{self.class_name}"

    def inspect_model_cls(self):
        raise AssertionError("a further process would inspect the class")

    def load_model_cls(self):
        return getattr(importlib.import_module(self.module_name), self.class_name)


class StandInInfo:
    """Stands for what vLLM learns about a model class."""

    @staticmethod
    def from_model_cls(model_class):
        return f"inspected {model_class.__name__}"


class StandInVllm:
    """Lies in sys.modules as `vllm`; records what is registered."""

    def __init__(self, monkeypatch, version="0.28.0", *, has_hooks=True):
        self.models = {"GptOssForCausalLM": "stock", "LlamaForCausalLM": "stock llama"}
        self.hooks = {"GptOssForCausalLM": "stock hook", "LlamaForCausalLM": "stock llama hook"}
        registry = SimpleNamespace(models=self.models, register_model=self._register)
        self._add(monkeypatch, "vllm", __version__=version, ModelRegistry=registry)
        self._add(monkeypatch, "vllm.model_executor")
        self._add(monkeypatch, "vllm.model_executor.models")
        table = {"MODELS_CONFIG_MAP": self.hooks} if has_hooks else {}
        self._add(monkeypatch, "vllm.model_executor.models.config", **table)
        entry = {"_LazyRegisteredModel": StandInEntry, "_ModelInfo": StandInInfo}
        self._add(monkeypatch, "vllm.model_executor.models.registry", **entry)

    def _register(self, architecture, name):
        self.models[architecture] = StandInEntry(*name.split(":"))

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
