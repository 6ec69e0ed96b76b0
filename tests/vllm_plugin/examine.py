"""Examines vLLM without loading a model: run by the Python of an environment with vLLM, not by ours.

Reads {"version": pretended version or null, "options": {name: options of EngineArgs, ...}} from stdin. Writes
{"models": {architecture: class}, "hooks": {architecture: class}, "generates": the class of gpt-oss is one that
generates text, "errors": {name: error of these options, or null}} as its last line.
"""

import json
import sys

import vllm
from vllm.engine.arg_utils import EngineArgs
from vllm.plugins import load_general_plugins

from firesteel.hub import BUILT_IN


def find_error(options):
    try:
        EngineArgs(**{"model": str(BUILT_IN), "dtype": "bfloat16", **options}).create_engine_config()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def fail(*_):
    raise AssertionError("vLLM inspects the class in a further process")


def main():
    task = json.loads(sys.stdin.read())
    if task["version"]:
        vllm.__version__ = task["version"]
    load_general_plugins()
    load_general_plugins()
    from vllm import ModelRegistry
    from vllm.model_executor.models import registry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP
    from vllm.model_executor.models.interfaces_base import is_text_generation_model

    if not task["version"]:  # else the class is one that refuses
        registry._run_in_subprocess = fail
    gpt_oss = ModelRegistry.models["GptOssForCausalLM"].load_model_cls()
    answer = {
        "models": {name: f"{entry.module_name}:{entry.class_name}" for name, entry in ModelRegistry.models.items()},
        "hooks": {name: hook.__name__ for name, hook in MODELS_CONFIG_MAP.items()},
        "generates": bool(is_text_generation_model(gpt_oss)),
        "errors": {name: find_error(options) for name, options in task["options"].items()},
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
