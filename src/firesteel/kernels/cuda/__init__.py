"""CUDA C++ compiled at run time: source, NVRTC, cache, arguments and launch."""
