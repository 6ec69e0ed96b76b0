"""Lets vLLM's CPU build run on Ray nodes that claim a GPU: it has no name for its device in Ray's resources.

Python imports this file at start if its folder is in PYTHONPATH.
"""

import importlib.abc
import importlib.machinery
import sys


class CpuPlatformFinder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "vllm.platforms.cpu":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.CpuPlatform.ray_device_key = "GPU"

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, CpuPlatformFinder())
