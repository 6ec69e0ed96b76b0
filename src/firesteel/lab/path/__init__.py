"""Which kernels ran: rules, log lines, imports and traces."""
