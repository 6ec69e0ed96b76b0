"""Which CUDA graphs vLLM captures for our model class; a stand-in for vLLM's classes, which are enough for that."""

import importlib
import sys
from enum import Enum
from types import ModuleType, SimpleNamespace

import pytest

CUDAGraphMode = Enum("CUDAGraphMode", ["NONE", "PIECEWISE", "FULL_DECODE_ONLY"])
STAND_INS = {
    "vllm": {"envs": SimpleNamespace()},
    "vllm.config": {"CUDAGraphMode": CUDAGraphMode},
    "vllm.config.compilation": {"CompilationMode": Enum("CompilationMode", ["NONE", "VLLM_COMPILE"])},
    "vllm.model_executor": {},
    "vllm.model_executor.models": {},
    "vllm.model_executor.models.config": {"GptOssForCausalLMConfig": type("GptOssForCausalLMConfig", (), {})},
}
OURS = ("firesteel.vllm_plugin.config", "firesteel.vllm_plugin.options.unsupported")


@pytest.fixture
def module(monkeypatch):
    for name, content in STAND_INS.items():
        stand_in = ModuleType(name)
        vars(stand_in).update(content)
        monkeypatch.setitem(sys.modules, name, stand_in)
    for name in OURS:
        monkeypatch.setitem(sys.modules, name, None)  # so that the end of the test takes ours away
        del sys.modules[name]
    monkeypatch.delenv("FIRESTEEL_CUDA_GRAPHS", raising=False)
    return importlib.import_module(OURS[0])


def choose_graphs(module, *, sizes=None, most=8, eager=False, mode=CUDAGraphMode.PIECEWISE):
    """Returns vLLM's configuration of compilation once ours has changed it."""
    compilation = SimpleNamespace(mode="compile", cudagraph_mode=mode, cudagraph_capture_sizes=[1, 2, 4])
    config = SimpleNamespace(
        compilation_config=compilation,
        model_config=SimpleNamespace(enforce_eager=eager),
        scheduler_config=SimpleNamespace(max_num_seqs=most),
    )
    module.use_full_graphs(config, sizes)
    return compilation


def test_each_number_of_requests_has_a_graph_of_its_own(module):
    """A padded row would read experts for nothing."""
    compilation = choose_graphs(module)
    assert compilation.cudagraph_mode is CUDAGraphMode.FULL_DECODE_ONLY
    assert compilation.cudagraph_capture_sizes == list(range(1, 9)) and compilation.max_cudagraph_capture_size == 8


def test_beyond_sixteen_requests_sizes_are_coarser(module):
    assert module.capture_sizes(100)[16:] == [24, 32, 48, 64, 96, 100]


def test_sizes_that_the_user_chose_are_kept(module):
    compilation = choose_graphs(module, sizes=[8, 2])
    assert compilation.cudagraph_capture_sizes == [2, 8] and compilation.max_cudagraph_capture_size == 8


@pytest.mark.parametrize("off", ["eager", "mode", "variable"])
def test_nothing_is_captured_if_the_user_wants_no_graphs(module, off, monkeypatch):
    if off == "variable":
        monkeypatch.setenv("FIRESTEEL_CUDA_GRAPHS", "off")
    mode = CUDAGraphMode.NONE if off == "mode" else CUDAGraphMode.PIECEWISE
    compilation = choose_graphs(module, eager=off == "eager", mode=mode)
    assert compilation.cudagraph_mode is CUDAGraphMode.NONE
    assert compilation.mode.name == "NONE", "vLLM's compilation is off all the same"
