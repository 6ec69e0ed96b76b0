"""The launch geometry of a CUDA kernel (grid, threads, cluster, shared memory): checks and the driver's form."""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from firesteel.errors import KernelError
from firesteel.kernels.target import SHARED_LIMIT_BYTES, architecture

MAX_THREADS = 1024
PORTABLE_CLUSTER = 8  # CTAs that a cluster may have on every GPU that has clusters
FIRST_WITH_CLUSTERS = 90  # and with dependent launch


@dataclass(frozen=True, slots=True)
class Geometry:
    grid: tuple[int, ...]
    threads: int  # per CTA
    shared_bytes: int  # dynamic, per CTA
    is_dependent: bool = False
    cluster: tuple[int, ...] = ()  # empty: no clusters

    @property
    def cluster_size(self) -> int:
        return math.prod(self.cluster)

    def refuse(self, target: str) -> str | None:
        """Returns why the target cannot run it, or None."""
        if not all(1 <= len(sizes) <= 3 and min(sizes) >= 1 for sizes in (self.grid, self.cluster or (1,))):
            return f"grid {self.grid} or cluster {self.cluster} is not of one to three sizes from 1 on"
        if not 1 <= self.threads <= MAX_THREADS:
            return f"{self.threads} threads are not 1 to {MAX_THREADS}"
        if self.shared_bytes > SHARED_LIMIT_BYTES[target]:
            return f"{target} has {SHARED_LIMIT_BYTES[target]} bytes of shared memory, not {self.shared_bytes}"
        if (self.is_dependent or self.cluster) and architecture(target) < FIRST_WITH_CLUSTERS:
            return f"dependent launch and clusters need compute capability 9.0, this is {target}"
        if any(size % part for size, part in zip(_three(self.grid), _three(self.cluster), strict=True)):
            return f"grid {self.grid} is not whole clusters of {self.cluster}"
        return None

    def check(self, kernel: str, target: str) -> None:
        if why := self.refuse(target):
            raise KernelError(f"{kernel}: {why}")


def make_config(geometry: Geometry) -> Any:
    """Builds the driver's launch configuration; the caller sets its stream."""
    from cuda.bindings.driver import CUlaunchConfig

    config = CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = _three(geometry.grid)
    config.blockDimX, config.blockDimY, config.blockDimZ = geometry.threads, 1, 1
    config.sharedMemBytes = geometry.shared_bytes
    attributes = _attributes(geometry)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def _attributes(geometry: Geometry) -> list[Any]:
    from cuda.bindings.driver import CUlaunchAttribute, CUlaunchAttributeID

    attributes = []
    if geometry.is_dependent:
        serialization = CUlaunchAttribute()
        serialization.id = CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        serialization.value.programmaticStreamSerializationAllowed = 1
        attributes.append(serialization)
    if geometry.cluster:
        cluster = CUlaunchAttribute()
        cluster.id = CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = cluster.value.clusterDim
        size.x, size.y, size.z = _three(geometry.cluster)
        attributes.append(cluster)
    return attributes


def _three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1, 1)[:3]
    return x, y, z
