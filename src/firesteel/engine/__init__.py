"""The engine: scheduling, KV cache, steps and sampling. It takes and returns token ids, never text."""
