"""gpt-oss: spec, weights and the network, computed by the ops of `kernels`."""
