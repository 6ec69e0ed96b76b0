"""Whether tokens stay the same batched, chunked, cached and preempted."""
