"""What NVIDIA's management library says of the GPUs, from outside the processes that use them; needs no CUDA."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def used_bytes() -> int | None:
    """Of all GPUs together, by whomever; None without a GPU, or where it shares the system's memory."""
    library = _library()
    if library is None:
        return None
    try:
        handles = [library.nvmlDeviceGetHandleByIndex(one) for one in range(library.nvmlDeviceGetCount())]
        return sum(int(library.nvmlDeviceGetMemoryInfo(one).used) for one in handles) if handles else None
    except library.NVMLError:
        return None


@cache
def _library() -> Any:
    """None without the package, or without a driver."""
    if find_spec("pynvml") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an older package under the same name
        pynvml: Any = import_module("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
