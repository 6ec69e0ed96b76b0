"""The plugin that runs gpt-oss in vLLM with the kernels and the network of this package."""
