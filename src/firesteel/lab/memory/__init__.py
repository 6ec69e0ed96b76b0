"""Memory of a server: on the GPU and in its processes."""
