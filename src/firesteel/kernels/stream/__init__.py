"""Streaming of weights by the decode kernels: shapes, the ring in shared memory, and launch plans."""
