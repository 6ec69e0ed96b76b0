"""Messages of the kernel: only those about a server's own processes, or about its GPU, count."""

import pytest

from firesteel.lab.servers.kernel_messages import GPU_FAULT, OUT_OF_MEMORY, find_kernel_cause

OURS = {4242: "VLLM::EngineCore", 4200: "vllm"}
KILLED = "[812.3] Out of memory: Killed process {} ({}) total-vm:123kB, anon-rss:99kB"


def test_only_the_process_that_was_killed_counts():
    assert find_kernel_cause([KILLED.format(4242, "VLLM::EngineCor")], OURS).kind == OUT_OF_MEMORY
    assert find_kernel_cause([KILLED.format(7, "chrome")], OURS) is None
    assert find_kernel_cause(["vllm invoked oom-killer: gfp_mask=0x140cca"], OURS) is None  # it asked, and lived
    assert find_kernel_cause([KILLED.format(7, "python3")], OURS) is None  # another server's


@pytest.mark.parametrize(
    ("name", "is_engine"),
    [("VLLM::EngineCor", True), ("python3.12", True), ("llama-server", True), ("chrome", False)],
)
def test_without_a_known_process_the_name_decides(name, is_engine):
    assert (find_kernel_cause([KILLED.format(9, name)], {}) is not None) == is_engine


def test_limit_of_a_container_has_its_own_cure():
    line = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,task=vllm,pid=4200,uid=0"
    cause = find_kernel_cause([line], OURS)
    assert "container" in cause.words and "--memory" in cause.cure
    assert "container" not in find_kernel_cause([KILLED.format(4200, "vllm")], OURS).words


def test_fault_of_another_process_is_not_ours_but_one_of_the_hardware_is_everybodys():
    xid = "NVRM: Xid (PCI:0000:01:00): {}, pid={}, name={}, Ch 00000008"
    assert find_kernel_cause([xid.format(31, 4242, "VLLM::EngineCor")], OURS).kind == GPU_FAULT
    assert "not mapped" in find_kernel_cause([xid.format(31, 4242, "x")], OURS).words
    assert find_kernel_cause([xid.format(31, 7, "blender")], OURS) is None
    fallen = find_kernel_cause([xid.format(79, 7, "blender")], OURS)
    assert "fallen off the bus" in fallen.words and "hardware" in fallen.cure
    assert find_kernel_cause(["NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed"], OURS) is not None
