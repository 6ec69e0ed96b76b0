"""How decode kernels stream weights: shapes, the ring in shared memory, and launch plans."""
