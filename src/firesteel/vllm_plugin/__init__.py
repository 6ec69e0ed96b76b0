"""The vLLM plugin: gpt-oss inside vLLM, computed by our kernels. Only `register` is importable without vLLM."""
