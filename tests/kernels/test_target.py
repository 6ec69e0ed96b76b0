"""The GPUs that kernels are compiled for."""

import pytest

from firesteel.errors import KernelError
from firesteel.kernels.target import SHARED_LIMIT_BYTES, architecture, find_target


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)])
def test_targets_are_found_by_capability(capability):
    target = find_target(capability)
    assert target.startswith(f"sm_{capability[0]}{capability[1]}")
    assert divmod(architecture(target), 10) == capability


def test_a_gpu_without_a_target_is_named():
    with pytest.raises(KernelError, match=r"compute capability 7\.5"):
        find_target((7, 5))


def test_an_unknown_target_names_the_nearest():
    with pytest.raises(KernelError, match=r"no target 'sm_121'; did you mean sm_121a\? targets: sm_80, .*sm_121a"):
        architecture("sm_121")
    assert SHARED_LIMIT_BYTES["sm_121a"] == 99 * 1024
