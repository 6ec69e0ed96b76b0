"""Evidence of which kernels ran: rules, log lines, ledgers, imports and the profiler's cross-check."""
