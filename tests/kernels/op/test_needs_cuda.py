from dataclasses import replace

from firesteel.device import find_device
from firesteel.kernels.op import needs as module
from firesteel.kernels.op.needs import cuda_ready, hopper_ready

CPU = find_device("cpu")
A100 = replace(CPU, name="A100", capability=(8, 0))
H200 = replace(CPU, name="H200", capability=(9, 0))
B200 = replace(CPU, name="B200", capability=(10, 0))


def test_gpu_of_the_capability_is_ready_and_an_older_one_or_a_cpu_is_not():
    assert cuda_ready()(H200) is None
    assert cuda_ready(8, 0)(A100) is None
    assert "9.0 or later, this is A100" in cuda_ready()(A100)
    assert "9.0 or later, this is CPU" in cuda_ready()(CPU)


def test_only_hopper_has_its_matrix_instructions():
    assert hopper_ready()(H200) is None
    assert all("capability 9.0, this is" in hopper_ready()(device) for device in (A100, B200, CPU))


def test_without_nvrtc_a_gpu_is_not_ready_and_a_cpu_wants_a_gpu_first(monkeypatch):
    monkeypatch.setattr(module, "lacks_nvrtc", lambda: "needs cuda.bindings, which is not installed")
    assert cuda_ready()(H200) == hopper_ready()(H200) == "needs cuda.bindings, which is not installed"
    assert "NVIDIA GPU" in cuda_ready()(CPU)
