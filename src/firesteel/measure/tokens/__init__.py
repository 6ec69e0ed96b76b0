"""Equality of tokens across batching, chunking, caching, preemption and rescoring."""
