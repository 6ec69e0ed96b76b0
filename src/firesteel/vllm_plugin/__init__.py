"""firesteel inside vLLM: a model class for gpt-oss that runs our kernels on vLLM's KV cache and scheduler."""
