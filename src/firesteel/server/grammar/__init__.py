"""Trial compilation of clients' grammars in child processes that can be killed."""
