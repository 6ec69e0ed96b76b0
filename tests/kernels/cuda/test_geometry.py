"""Launch attributes for grids, clusters and dependent launch; no driver is needed."""

from dataclasses import replace

import pytest
from cuda.bindings.driver import CUlaunchAttributeID

from firesteel.errors import KernelError
from firesteel.kernels.cuda.geometry import Geometry, make_config

PLAIN = Geometry((132,), threads=512, shared_bytes=86016)
SERIALIZATION = CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
CLUSTER = CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


def test_missing_sizes_are_one():
    config = make_config(replace(PLAIN, grid=(132, 2)))
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (132, 2, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (512, 1, 1)
    assert config.sharedMemBytes == 86016


@pytest.mark.parametrize("is_dependent", [False, True])
@pytest.mark.parametrize("cluster", [(), (2,), (1, 4)])
def test_attributes_are_the_requested_ones(is_dependent, cluster):
    config = make_config(replace(PLAIN, is_dependent=is_dependent, cluster=cluster))
    attributes = {attribute.id: attribute.value for attribute in config.attrs}
    assert config.numAttrs == len(attributes) == is_dependent + bool(cluster)
    if is_dependent:
        assert attributes[SERIALIZATION].programmaticStreamSerializationAllowed == 1
    if cluster:
        size = attributes[CLUSTER].clusterDim
        assert (size.x, size.y, size.z) == (*cluster, 1, 1)[:3]


@pytest.mark.parametrize(
    ("change", "target", "why"),
    [
        ({}, "sm_90a", None),
        ({}, "sm_80", None),
        ({"is_dependent": True, "cluster": (4,)}, "sm_121a", None),
        ({"is_dependent": True}, "sm_89", "need compute capability 9.0, this is sm_89"),
        ({"cluster": (2,)}, "sm_80", "need compute capability 9.0, this is sm_80"),
        ({"cluster": (5,)}, "sm_90a", "not whole clusters"),
        ({"cluster": (1, 2)}, "sm_90a", "not whole clusters"),
        ({"grid": ()}, "sm_90a", "one to three sizes"),
        ({"grid": (1, 0)}, "sm_90a", "one to three sizes"),
        ({"grid": (1, 1, 1, 1)}, "sm_90a", "one to three sizes"),
        ({"threads": 0}, "sm_90a", "0 threads are not 1 to 1024"),
        ({"threads": 1025}, "sm_90a", "1025 threads"),
        ({"shared_bytes": 101_377}, "sm_121a", "sm_121a has 101376 bytes of shared memory, not 101377"),
        ({"shared_bytes": 101_377}, "sm_90a", None),
    ],
)
def test_launch_that_a_target_cannot_run_is_refused_with_the_reason(change, target, why):
    geometry = replace(PLAIN, **change)
    if why is None:
        geometry.check("kernel", target)
    else:
        with pytest.raises(KernelError, match=f"kernel: .*{why}"):
            geometry.check("kernel", target)
