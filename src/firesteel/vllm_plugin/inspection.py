"""Our entry in vLLM's table of models, inspected in vLLM's own process.

vLLM inspects a model class that is registered by name in a process of its own, so that importing the class cannot
initialise CUDA in the parent. That process imports vLLM anew, which takes up to 20 s. Importing our class does not
initialise CUDA, so it needs none.
"""
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.registry import _LazyRegisteredModel, _ModelInfo


class ModelEntry(_LazyRegisteredModel):
    """A model class that is imported when it is asked about."""

    def inspect_model_cls(self) -> Any:
        return _ModelInfo.from_model_cls(self.load_model_cls())


def inspect_here(models: dict[str, Any], architecture: str) -> None:
    """Replaces the entry that vLLM has made for `architecture` by one that needs no further process."""
    entry = models[architecture]
    models[architecture] = ModelEntry(entry.module_name, entry.class_name)
